// One record a request with franz-go: so many requests are in flight, each with a single record.
//
//	franz BOOTSTRAP TOPIC RECORDS IN_FLIGHT
//
// Prints records, records_per_second, p50_ms and p99_ms as JSON.
package main

import (
	"context"
	"encoding/json"
	"log"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// The smallest batches that the client can be limited to have batchBytes: room for one such record,
// not for two.
const (
	recordBytes = 300
	batchBytes  = 512
)

func main() {
	if len(os.Args) != 5 {
		log.Fatal("usage: franz BOOTSTRAP TOPIC RECORDS IN_FLIGHT")
	}
	bootstrap, topic := os.Args[1], os.Args[2]
	count, err := strconv.Atoi(os.Args[3])
	if err != nil {
		log.Fatal(err)
	}
	inFlight, err := strconv.Atoi(os.Args[4])
	if err != nil {
		log.Fatal(err)
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(bootstrap),
		kgo.DefaultProduceTopic(topic),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.DisableIdempotentWrite(),
		kgo.MaxProduceRequestsInflightPerBroker(inFlight),
		kgo.MaxBufferedRecords(count),
		kgo.ProducerLinger(0),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchMaxBytes(batchBytes),
	)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	ctx := context.Background()
	value := make([]byte, recordBytes)
	if err := client.ProduceSync(ctx, record(value)).FirstErr(); err != nil {
		log.Fatal(err)
	}
	// So many senders wait for their own answers.
	latencies := make([][]time.Duration, inFlight)
	var senders sync.WaitGroup
	began := time.Now()
	for sender := range inFlight {
		senders.Add(1)
		go func() {
			defer senders.Done()
			for range count / inFlight {
				sent := time.Now()
				if err := client.ProduceSync(ctx, record(value)).FirstErr(); err != nil {
					log.Fatal(err)
				}
				latencies[sender] = append(latencies[sender], time.Since(sent))
			}
		}()
	}
	senders.Wait()
	elapsed := time.Since(began)
	all := slices.Concat(latencies...)
	slices.Sort(all)
	told := map[string]float64{
		"records":            float64(len(all)),
		"records_per_second": float64(len(all)) / elapsed.Seconds(),
		"p50_ms":             milliseconds(all[len(all)/2]),
		"p99_ms":             milliseconds(all[len(all)*99/100]),
	}
	if err := json.NewEncoder(os.Stdout).Encode(told); err != nil {
		log.Fatal(err)
	}
}

func record(value []byte) *kgo.Record {
	return &kgo.Record{Value: value, Partition: 0}
}

func milliseconds(duration time.Duration) float64 {
	return float64(duration.Microseconds()) / 1000
}
