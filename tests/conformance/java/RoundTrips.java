import java.io.FileInputStream;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * With the properties of each file: a topic named like the file is created, ten records are written to it and read, and
 * printed in one line. With --on FILE: writes a record to its topic every 50 ms until an error, which is printed; once
 * the first is written, it prints "written".
 */
public class RoundTrips {
    static final int COUNT = 10;

    public static void main(String[] files) throws Exception {
        if (files[0].equals("--on")) {
            writeOn(properties(files[1]), topic(files[1]));
            return;
        }
        for (String file : files) System.out.println(topic(file) + ": " + roundTrip(properties(file), topic(file)));
    }

    static String topic(String file) {
        return Path.of(file).getFileName().toString().replace(".properties", "");
    }

    static Properties properties(String file) throws Exception {
        Properties properties = new Properties();
        try (FileInputStream content = new FileInputStream(file)) {
            properties.load(content);
        }
        return properties;
    }

    static String roundTrip(Properties properties, String topic) throws Exception {
        try (Admin admin = Admin.create(properties)) {
            admin.createTopics(List.of(new NewTopic(topic, Optional.of(1), Optional.empty()))).all().get();
        }
        try (KafkaProducer<String, String> producer = producer(properties)) {
            for (int index = 0; index < COUNT; index++) {
                producer.send(new ProducerRecord<>(topic, Integer.toString(index))).get();
            }
        }
        List<String> found = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(properties, new StringDeserializer(), new StringDeserializer())) {
            List<TopicPartition> all = List.of(new TopicPartition(topic, 0));
            consumer.assign(all);
            consumer.seekToBeginning(all);
            while (found.size() < COUNT) {
                consumer.poll(Duration.ofSeconds(1)).forEach(record -> found.add(record.value()));
            }
        }
        return String.join(" ", found);
    }

    static void writeOn(Properties properties, String topic) throws InterruptedException {
        try (KafkaProducer<String, String> producer = producer(properties)) {
            for (long count = 0; ; count++) {
                producer.send(new ProducerRecord<>(topic, "x")).get();
                if (count == 0) System.out.println("written");
                Thread.sleep(50);
            }
        } catch (ExecutionException error) {
            System.out.println(error.getCause());
        }
    }

    static KafkaProducer<String, String> producer(Properties properties) {
        return new KafkaProducer<>(properties, new StringSerializer(), new StringSerializer());
    }
}
