import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.Arrays;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.Stores;

/**
 * Counts words: lines of one topic, through a repartition topic, into a store in memory that has a
 * changelog, and every new count to another topic.
 *
 * <p>Arguments: input topic, output topic, then the application's settings as key=value. Tells every
 * change of state on a line of its own, and closes when its standard input ends.
 */
public final class WordCount {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        for (String setting : Arrays.copyOfRange(arguments, 2, arguments.length)) {
            String[] parts = setting.split("=", 2);
            settings.put(parts[0], parts[1]);
        }
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(arguments[0], Consumed.with(Serdes.String(), Serdes.String()))
                .flatMapValues(line -> Arrays.asList(line.split(" ")))
                .groupBy((key, word) -> word, Grouped.with("words", Serdes.String(), Serdes.String()))
                .count(
                        Materialized.<String, Long>as(Stores.inMemoryKeyValueStore("counts"))
                                .withKeySerde(Serdes.String())
                                .withValueSerde(Serdes.Long()))
                .toStream()
                .mapValues(count -> Long.toString(count))
                .to(arguments[1], Produced.with(Serdes.String(), Serdes.String()));
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setStateListener((now, before) -> System.out.println("state " + now));
        streams.start();
        new BufferedReader(new InputStreamReader(System.in)).readLine();
        boolean closed = streams.close(Duration.ofSeconds(20));
        System.out.println(closed ? "closed" : "not closed in time");
        System.exit(closed ? 0 : 1);
    }
}
