import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Three members of a group of each kind, in a thread each: bootstrap, then how many partitions a topic has. A kind is
 * its topic and its group. What is read is printed; all end together, when each group has read the record "end" of
 * each of its partitions.
 */
public class RewoundConsumers {
    static final Map<String, Map<String, String>> KINDS = Map.of(
            "range", assigned("org.apache.kafka.clients.consumer.RangeAssignor"),
            "sticky", assigned("org.apache.kafka.clients.consumer.StickyAssignor"),
            "cooperative", assigned("org.apache.kafka.clients.consumer.CooperativeStickyAssignor"),
            "consumer", Map.of("group.protocol", "consumer", "auto.offset.reset", "earliest"),
            "share", Map.of());

    public static void main(String[] arguments) throws Exception {
        int wanted = Integer.parseInt(arguments[1]) * KINDS.size();
        Set<String> ended = ConcurrentHashMap.newKeySet();
        List<Thread> members = new ArrayList<>();
        for (String kind : KINDS.keySet()) {
            for (int at = 0; at < 3; at++) {
                members.add(new Thread(() -> consume(arguments[0], kind, ended, wanted)));
            }
        }
        for (Thread member : members) member.start();
        for (Thread member : members) member.join();
        System.out.println("END");
    }

    static Map<String, String> assigned(String assignor) {
        return Map.of("partition.assignment.strategy", assignor, "heartbeat.interval.ms", "200",
                "session.timeout.ms", "10000", "auto.offset.reset", "earliest");
    }

    static void consume(String bootstrap, String kind, Set<String> ended, int wanted) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("group.id", kind);
        properties.putAll(KINDS.get(kind));
        long deadline = System.nanoTime() + 150_000_000_000L;
        StringDeserializer text = new StringDeserializer();
        if (kind.equals("share")) {
            try (KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(properties, text, text)) {
                consumer.subscribe(List.of(kind));
                while (ended.size() < wanted && System.nanoTime() < deadline) {
                    say(kind, consumer.poll(Duration.ofMillis(100)), ended);
                    consumer.commitSync();
                }
            }
            return;
        }
        properties.put("auto.commit.interval.ms", "10");
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(properties, text, text)) {
            consumer.subscribe(List.of(kind));
            while (ended.size() < wanted && System.nanoTime() < deadline) {
                say(kind, consumer.poll(Duration.ofMillis(100)), ended);
            }
        }
    }

    static synchronized void say(
            String kind, Iterable<ConsumerRecord<String, String>> records, Set<String> ended) {
        for (ConsumerRecord<String, String> record : records) {
            System.out.println("RECORD " + kind + " " + record.partition() + " " + record.offset());
            if ("end".equals(record.value())) ended.add(kind + record.partition());
        }
    }
}
