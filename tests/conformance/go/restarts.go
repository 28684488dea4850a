package main

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	writeFor = 22 * time.Second
	// A member leaves and another one joins so often: some of them wait for a rebalance whenever a
	// node is stopped.
	replaceEvery = 2500 * time.Millisecond
	restless     = 3
	// As in franz-go's own tests. A request to join is given up when it has failed for so long.
	session = 20 * time.Second
)

// kind is a group whose members come and go while nodes are restarted.
type kind struct {
	name     string
	protocol Protocol
	isStatic bool
}

var kinds = []kind{
	{"range", Protocol{[]kgo.Opt{kgo.Balancers(kgo.RangeBalancer())}, "classic"}, false},
	{"cooperative", cooperative, false},
	{"cooperative-static", cooperative, true},
	// No static one: franz-go gives up leaving temporarily when the node that it asks is down, and its
	// next member of that name is refused (UNRELEASED_INSTANCE_ID) until the session ends.
	{"consumer", consumerProtocol, false},
}

// surviveRestarts reads a topic in groups of every kind while it is written to. The nodes are
// restarted meanwhile, by whoever runs it. No client may be told of an error, and each group reads
// each record once.
func surviveRestarts(ctx context.Context, scene *Scene) (Result, error) {
	topic, two := scene.Name+"-topic", "2"
	configs := map[string]*string{"min.insync.replicas": &two}
	if _, err := scene.Admin.CreateTopic(ctx, partitions, 3, configs, topic); err != nil {
		return nil, err
	}
	writing, stop := context.WithTimeout(ctx, writeFor)
	defer stop()
	total := 0
	written := make(chan error, 1)
	go func() {
		count, err := writeUntil(writing, scene, topic)
		total = count
		written <- err
	}()
	waits := sync.WaitGroup{}
	failures := make(chan error, len(kinds))
	pauses := make([]time.Duration, len(kinds))
	rooms := make([]*Room, len(kinds))
	groups := make([][]*Member, len(kinds))
	for at, kind := range kinds {
		rooms[at] = newRoom()
		waits.Go(func() {
			var err error
			groups[at], pauses[at], err = replaceUntil(writing, scene, kind, topic, rooms[at])
			if err != nil {
				failures <- fmt.Errorf("%s: %w", kind.name, err)
			}
		})
	}
	waits.Wait()
	if err := <-written; err != nil {
		return nil, err
	}
	close(failures)
	for err := range failures {
		return nil, err
	}
	result := Result{"records": total}
	for at, kind := range kinds {
		room := rooms[at]
		if err := room.wait(ctx, kind.name+" reads everything", func() bool {
			return len(room.seen) == total
		}); err != nil {
			return nil, fmt.Errorf("%w: %d of %d", err, len(room.seen), total)
		}
		for _, member := range groups[at] {
			member.leave()
		}
		for value, count := range room.seen {
			if count != 1 {
				return nil, fmt.Errorf("%s: record %s was read %d times", kind.name, value, count)
			}
		}
		if room.failed != nil {
			return nil, fmt.Errorf("%s: %w", kind.name, room.failed)
		}
		result[kind.name] = pauses[at].Seconds()
	}
	return result, nil
}

// writeUntil writes numbered records until the context ends; returns how many.
func writeUntil(ctx context.Context, scene *Scene, topic string) (int, error) {
	client, err := scene.Client(kgo.DefaultProduceTopic(topic))
	if err != nil {
		return 0, err
	}
	defer client.Close()
	count := 0
	for ctx.Err() == nil {
		for range 20 {
			text := []byte(strconv.Itoa(count))
			count++
			client.Produce(context.Background(), &kgo.Record{Key: text, Value: text}, func(_ *kgo.Record, failed error) {
				if failed != nil {
					err = failed
				}
			})
		}
		time.Sleep(50 * time.Millisecond)
	}
	if flushed := client.Flush(context.Background()); flushed != nil {
		return count, flushed
	}
	return count, err
}

// replaceUntil has one member after the other leave the group and another one join, a static one
// under the same name. Returns the members that are left, and the longest time without a record.
func replaceUntil(
	ctx context.Context, scene *Scene, kind kind, topic string, room *Room,
) ([]*Member, time.Duration, error) {
	members := make([]*Member, restless)
	join := func(at int) error {
		options := []kgo.Opt{
			kgo.ConsumerGroup(scene.Name + "-" + kind.name),
			kgo.ConsumeTopics(topic),
			kgo.SessionTimeout(session),
		}
		if kind.isStatic {
			options = append(options, kgo.InstanceID(fmt.Sprint("instance-", at)))
		}
		member, err := room.join(scene, kind.protocol, options...)
		members[at] = member
		return err
	}
	for at := range members {
		if err := join(at); err != nil {
			return nil, 0, err
		}
	}
	if err := room.wait(ctx, "the first record", func() bool { return len(room.seen) > 0 }); err != nil {
		return nil, 0, err
	}
	longest, count, since, next := time.Duration(0), 0, time.Now(), time.Now().Add(replaceEvery)
	for at := 0; ctx.Err() == nil; {
		time.Sleep(20 * time.Millisecond)
		room.mutex.Lock()
		seen, failed := len(room.seen), room.failed
		room.mutex.Unlock()
		if failed != nil {
			return nil, 0, failed
		}
		if seen != count {
			count, since = seen, time.Now()
		}
		longest = max(longest, time.Since(since))
		if time.Now().After(next) {
			members[at].leave()
			if err := join(at); err != nil {
				return nil, 0, err
			}
			at = (at + 1) % restless
			next = time.Now().Add(replaceEvery)
		}
	}
	return members, longest, nil
}
