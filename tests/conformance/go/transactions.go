package main

import (
	"context"
	"fmt"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

const copied = 600

// copyExactlyOnce has sessions copy from topic to topic while they come, abort and go; whoever
// reads committed records sees each once.
func copyExactlyOnce(protocol Protocol) Scenario {
	return func(ctx context.Context, scene *Scene) (Result, error) {
		source, err := scene.NewTopic(ctx, "source", partitions)
		if err != nil {
			return nil, err
		}
		sink, err := scene.NewTopic(ctx, "sink", partitions)
		if err != nil {
			return nil, err
		}
		name := scene.Name + "-group"
		stop, cancel := context.WithCancel(ctx)
		defer cancel()
		failed := make(chan error, 3)
		copiers := sync.WaitGroup{}
		room := newRoom()
		aborted := 0
		start := func(number int) error {
			session, err := kgo.NewGroupTransactSession(scene.options(append([]kgo.Opt{
				kgo.TransactionalID(fmt.Sprintf("%s-%d", scene.Name, number)),
				kgo.ConsumerGroup(name),
				kgo.ConsumeTopics(source),
				kgo.DefaultProduceTopic(sink),
				kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
				kgo.FetchIsolationLevel(kgo.ReadCommitted()),
				kgo.RequireStableFetchOffsets(),
			}, protocol.options...))...)
			if err != nil {
				return err
			}
			copiers.Go(func() {
				defer session.Close()
				count, err := copyUntil(stop, session)
				if err != nil {
					failed <- err
				}
				room.change(func() { aborted += count })
			})
			return nil
		}
		if err := start(0); err != nil {
			return nil, err
		}
		if err := watch(stop, scene, sink, room); err != nil {
			return nil, err
		}
		for number := 1; number <= 3; number++ {
			if err := scene.Write(ctx, source, (number-1)*copied, copied); err != nil {
				return nil, err
			}
			if number < 3 {
				if err := start(number); err != nil {
					return nil, err
				}
			}
			if err := room.wait(ctx, "everything is copied", func() bool {
				return len(room.seen) == number*copied
			}); err != nil {
				select {
				case why := <-failed:
					return nil, why
				default:
					return nil, fmt.Errorf("%w: %d of %d", err, len(room.seen), number*copied)
				}
			}
		}
		cancel()
		copiers.Wait()
		select {
		case err := <-failed:
			return nil, err
		default:
		}
		for value, count := range room.seen {
			if count != 1 {
				return nil, fmt.Errorf("record %s was copied %d times", value, count)
			}
		}
		if aborted == 0 {
			return nil, fmt.Errorf("no transaction was aborted")
		}
		return Result{"records": len(room.seen), "aborted": aborted}, committed(ctx, scene, name, 3*copied)
	}
}

// copyUntil copies in transactions, and gives every third up; returns how many were aborted.
func copyUntil(ctx context.Context, session *kgo.GroupTransactSession) (int, error) {
	aborted := 0
	for number := 1; ; number++ {
		fetches := session.PollRecords(ctx, copied/10)
		if ctx.Err() != nil {
			return aborted, nil
		}
		if err := fetches.Err(); err != nil {
			return aborted, err
		}
		if err := session.Begin(); err != nil {
			return aborted, err
		}
		records := fetches.Records()
		copies := make([]*kgo.Record, len(records))
		for at, record := range records {
			copies[at] = &kgo.Record{Key: record.Key, Value: record.Value}
		}
		// A copy whose session is revoked meanwhile may fail; End knows.
		_ = session.ProduceSync(ctx, copies...).FirstErr()
		committed, err := session.End(context.Background(), kgo.TransactionEndTry(number%3 != 0))
		if err != nil {
			return aborted, err
		}
		if !committed {
			aborted++
		}
	}
}

// watch notes every committed record of the topic in the room.
func watch(ctx context.Context, scene *Scene, topic string, room *Room) error {
	client, err := scene.Client(
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
	)
	if err != nil {
		return err
	}
	go func() {
		defer client.Close()
		for ctx.Err() == nil {
			fetches := client.PollFetches(ctx)
			room.change(func() {
				fetches.EachRecord(func(record *kgo.Record) { room.seen[string(record.Value)]++ })
			})
		}
	}()
	return nil
}
