import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Produced;

/**
 * Members of groups of every kind that run until standard input ends: bootstrap, the topic that all of them read, a
 * folder for state, then the kinds. A kind is also the name of its group. Readers print "READ kind partition offset"
 * for each record; those that copy write to the topic of the kind's name, in transactions. An error that ends a
 * member is printed as "FAULT kind error", one after which it starts again as "AGAIN kind error".
 */
public final class SoakClients {
    static final int MEMBERS = 2;
    static volatile boolean isOver = false;

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0], topic = arguments[1], folder = arguments[2];
        List<Thread> members = new ArrayList<>();
        for (String kind : Arrays.copyOfRange(arguments, 3, arguments.length)) {
            for (int at = 0; at < (kind.equals("java-streams") ? 1 : MEMBERS); at++) {
                String name = kind + "-" + at;
                Thread member = new Thread(() -> untilOver(kind, () -> run(kind, name, bootstrap, topic, folder)));
                members.add(member);
                member.start();
            }
        }
        new BufferedReader(new InputStreamReader(System.in)).readLine();
        isOver = true;
        for (Thread member : members) member.join(40_000);
        say("END");
        System.exit(0);
    }

    interface Work {
        void run() throws Exception;
    }

    /** Starts a member again when a client has ended with an error. */
    static void untilOver(String kind, Work work) {
        while (!isOver) {
            try {
                work.run();
            } catch (KafkaException error) {
                say("AGAIN " + kind + " " + error);
            } catch (Exception error) {
                say("FAULT " + kind + " " + error);
                return;
            }
        }
    }

    static void run(String kind, String name, String bootstrap, String topic, String folder) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", kind);
        settings.put("client.id", name);
        switch (kind) {
            case "java-share" -> share(kind, settings, topic);
            case "java-streams" -> streams(kind, settings, topic, folder);
            case "java-copy" -> copy(kind, name, classic(settings, name), topic);
            case "java-copy-consumer" -> copy(kind, name, newer(settings), topic);
            case "java-static" -> read(kind, classic(settings, name), topic);
            case "java-consumer" -> read(kind, newer(settings), topic);
            default -> throw new IllegalArgumentException(kind);
        }
    }

    static Properties classic(Properties settings, String name) {
        settings.put("partition.assignment.strategy", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");
        settings.put("group.instance.id", name);
        settings.put("session.timeout.ms", "10000");
        return reset(settings);
    }

    static Properties newer(Properties settings) {
        settings.put("group.protocol", "consumer");
        return reset(settings);
    }

    static Properties reset(Properties settings) {
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("isolation.level", "read_committed");
        return settings;
    }

    static void read(String kind, Properties settings, String topic) {
        StringDeserializer text = new StringDeserializer();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings, text, text)) {
            consumer.subscribe(List.of(topic));
            while (!isOver) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(200));
                say(kind, records);
                if (!records.isEmpty()) commit(consumer);
            }
        }
    }

    /** A commit that fails for a while, or because of a rebalance, is repeated with the next records. */
    static void commit(KafkaConsumer<String, String> consumer) {
        try {
            consumer.commitSync(Duration.ofSeconds(5));
        } catch (RetriableException | CommitFailedException error) {
            // What was read is read again.
        }
    }

    static void share(String kind, Properties settings, String topic) {
        StringDeserializer text = new StringDeserializer();
        try (KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(settings, text, text)) {
            consumer.subscribe(List.of(topic));
            while (!isOver) {
                say(kind, consumer.poll(Duration.ofMillis(200)));
                consumer.commitSync(Duration.ofSeconds(5));
            }
        }
    }

    static void streams(String kind, Properties settings, String topic, String folder) throws Exception {
        settings.remove("group.id");
        settings.remove("client.id");
        settings.put("application.id", kind);
        settings.put("group.protocol", "streams");
        settings.put("processing.guarantee", "exactly_once_v2");
        settings.put("commit.interval.ms", "200");
        settings.put("auto.offset.reset", "earliest");
        settings.put("transaction.timeout.ms", "20000");
        settings.put("num.stream.threads", "2");
        settings.put("state.dir", folder);
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(topic, Consumed.with(Serdes.String(), Serdes.String()))
                .to(kind, Produced.with(Serdes.String(), Serdes.String()));
        try (KafkaStreams streams = new KafkaStreams(builder.build(), settings)) {
            streams.setUncaughtExceptionHandler(error -> {
                say("AGAIN " + kind + " " + error);
                return StreamThreadExceptionResponse.REPLACE_THREAD;
            });
            streams.start();
            while (!isOver) Thread.sleep(100);
            streams.close(Duration.ofSeconds(30));
        }
    }

    /** Copies in transactions, exactly once; gives every seventh up. */
    static void copy(String kind, String name, Properties settings, String topic) {
        Properties writing = new Properties();
        writing.put("bootstrap.servers", settings.get("bootstrap.servers"));
        writing.put("transactional.id", name);
        writing.put("transaction.timeout.ms", "20000");
        StringDeserializer read = new StringDeserializer();
        StringSerializer write = new StringSerializer();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings, read, read);
                KafkaProducer<String, String> producer = new KafkaProducer<>(writing, write, write)) {
            producer.initTransactions();
            consumer.subscribe(List.of(topic));
            for (int number = 1; !isOver; number++) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(200));
                if (records.isEmpty()) continue;
                Map<TopicPartition, OffsetAndMetadata> positions = new HashMap<>();
                producer.beginTransaction();
                try {
                    for (ConsumerRecord<String, String> record : records) {
                        producer.send(new ProducerRecord<>(kind, record.partition(), record.key(), record.value()));
                        positions.put(
                                new TopicPartition(record.topic(), record.partition()),
                                new OffsetAndMetadata(record.offset() + 1));
                    }
                    producer.sendOffsetsToTransaction(positions, consumer.groupMetadata());
                    if (number % 7 != 0) {
                        commit(producer);
                        continue;
                    }
                } catch (ProducerFencedException error) {
                    throw error;
                } catch (KafkaException error) {
                    say("AGAIN " + kind + " " + error);
                }
                producer.abortTransaction();
                rewind(consumer, positions.keySet());
            }
        }
    }

    /** A commit that was not answered in time has to be repeated: it may have happened. */
    static void commit(KafkaProducer<String, String> producer) {
        while (true) {
            try {
                producer.commitTransaction();
                return;
            } catch (TimeoutException error) {
                // Again.
            }
        }
    }

    /** To the committed positions: what was given up is read again. */
    static void rewind(KafkaConsumer<String, String> consumer, Set<TopicPartition> partitions) {
        Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(partitions);
        for (TopicPartition partition : partitions) {
            if (!consumer.assignment().contains(partition)) continue;
            OffsetAndMetadata position = committed.get(partition);
            consumer.seek(partition, position == null ? 0 : position.offset());
        }
    }

    static synchronized void say(String kind, ConsumerRecords<String, String> records) {
        for (ConsumerRecord<String, String> record : records) {
            System.out.println("READ " + kind + " " + record.partition() + " " + record.offset());
        }
    }

    static synchronized void say(String line) {
        System.out.println(line.replace('\n', ' '));
    }
}
