import java.time.Duration;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Members of a share group, each in a thread: bootstrap, group, topic, how many members, how many records to have
 * done with, then settings as key=value. Explicit members do what the first letter of a value says: accept (a),
 * release at the first delivery (l), reject (j), renew the lock and then accept (n). What happens is printed.
 */
public class ShareConsumers {
    static final AtomicInteger done = new AtomicInteger();

    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        properties.put("group.id", arguments[1]);
        for (int at = 5; at < arguments.length; at++) {
            String[] setting = arguments[at].split("=", 2);
            properties.put(setting[0], setting[1]);
        }
        boolean isExplicit = "explicit".equals(properties.get("share.acknowledgement.mode"));
        int count = Integer.parseInt(arguments[4]);
        Thread[] members = new Thread[Integer.parseInt(arguments[3])];
        for (int at = 0; at < members.length; at++) {
            String name = "m" + at;
            members[at] = new Thread(() -> consume(name, properties, arguments[2], isExplicit, count));
            members[at].start();
        }
        for (Thread member : members) member.join();
        System.out.println("END " + done.get());
    }

    static void consume(String name, Properties properties, String topic, boolean isExplicit, int count) {
        long deadline = System.nanoTime() + 40_000_000_000L;
        Set<Long> renewed = new HashSet<>();
        try (KafkaShareConsumer<String, String> consumer =
                new KafkaShareConsumer<>(properties, new StringDeserializer(), new StringDeserializer())) {
            consumer.setAcknowledgementCommitCallback((offsets, error) -> {
                if (error != null) say("ERROR", name, error.toString());
            });
            consumer.subscribe(List.of(topic));
            while (done.get() < count && System.nanoTime() < deadline) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(200));
                if (records.isEmpty()) continue;
                say("POLL", name, String.valueOf(records.count()));
                for (ConsumerRecord<String, String> record : records) {
                    int deliveries = record.deliveryCount().get();
                    say("RECORD", name, record.offset() + " " + deliveries + " " + record.value());
                    if (!isExplicit) {
                        done.incrementAndGet();
                        continue;
                    }
                    char what = record.value().charAt(0);
                    if (what == 'l' && deliveries == 1) {
                        consumer.acknowledge(record, AcknowledgeType.RELEASE);
                    } else if (what == 'n' && renewed.add(record.offset())) {
                        consumer.acknowledge(record, AcknowledgeType.RENEW);
                    } else {
                        consumer.acknowledge(record, what == 'j' ? AcknowledgeType.REJECT : AcknowledgeType.ACCEPT);
                        done.incrementAndGet();
                    }
                }
                Map<?, ? extends java.util.Optional<?>> outcome = consumer.commitSync();
                outcome.forEach((partition, error) -> error.ifPresent(found -> say("ERROR", name, found.toString())));
            }
        } catch (Exception error) {
            say("ERROR", name, error.toString());
        }
    }

    static synchronized void say(String what, String name, String rest) {
        System.out.println(what + " " + name + " " + rest);
    }
}
