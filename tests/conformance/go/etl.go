package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	etlPartitions   = 7
	etlTransaction  = 500
	etlStages       = 2
	etlAtATime      = 3
	etlPoll         = 100 * time.Millisecond
	etlGarbage      = "garbage"
	etlStaysForever = -1
)

// etlConfigs are the kinds of groups in which sessions consume; static members have instance ids.
var etlConfigs = []struct {
	name     string
	isStatic bool
	options  []kgo.Opt
}{
	{"range", false, []kgo.Opt{kgo.Balancers(kgo.RangeBalancer())}},
	{"cooperative", false, []kgo.Opt{kgo.Balancers(kgo.CooperativeStickyBalancer())}},
	{"consumer-range", false, []kgo.Opt{kgo.Balancers(kgo.RangeBalancer()), kgo.ServerSideBalancer()}},
	{"consumer-sticky", false, []kgo.Opt{kgo.Balancers(kgo.StickyBalancer()), kgo.ServerSideBalancer()}},
	{"cooperative-static", true, []kgo.Opt{kgo.Balancers(kgo.CooperativeStickyBalancer())}},
	{"consumer-static", true, []kgo.Opt{kgo.Balancers(kgo.StickyBalancer()), kgo.ServerSideBalancer()}},
}

// etlStage is a group of sessions that copies one topic to the next, and what it has committed.
type etlStage struct {
	scene    *Scene
	name     string
	source   string
	sink     string
	isStatic bool
	options  []kgo.Opt
	records  int

	mutex   sync.Mutex
	offsets map[[2]int64]bool
	seen    []bool
	count   int
}

// place is where a record was read: its partition and offset, and its number.
type place struct {
	partition int32
	offset    int64
	number    int
}

// committed notes what a committed transaction has copied. Every record is copied once.
func (s *etlStage) committed(copied []place) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for _, one := range copied {
		at := [2]int64{int64(one.partition), one.offset}
		if s.offsets[at] || s.seen[one.number] {
			return fmt.Errorf("%s: record %d is copied twice, from %s-%d at %d",
				s.name, one.number, s.source, one.partition, one.offset)
		}
		s.offsets[at], s.seen[one.number] = true, true
		s.count++
	}
	return nil
}

func (s *etlStage) isDone() bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.count == s.records
}

// member runs sessions one after another under one transactional id. Each commits so many
// transactions and then leaves in the middle of one; one that stays for ever ends with the stage.
func (s *etlStage) member(ctx context.Context, number int, lives ...int) error {
	for _, commits := range lives {
		if err := s.live(ctx, fmt.Sprintf("%s-%d", s.name, number), commits); err != nil {
			return fmt.Errorf("%s, member %d with %d transactions: %w", s.name, number, commits, err)
		}
	}
	return nil
}

func (s *etlStage) live(ctx context.Context, id string, commits int) error {
	options := []kgo.Opt{
		kgo.TransactionalID(id),
		kgo.ConsumerGroup(s.name),
		kgo.ConsumeTopics(s.source),
		kgo.DefaultProduceTopic(s.sink),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(),
		kgo.SessionTimeout(20 * time.Second),
		kgo.UnknownTopicRetries(-1),
	}
	if s.isStatic {
		options = append(options, kgo.InstanceID(id))
	}
	session, err := kgo.NewGroupTransactSession(s.scene.options(append(options, s.options...))...)
	if err != nil {
		return err
	}
	defer s.leave(ctx, session, id)
	for committed := 0; ctx.Err() == nil; {
		polling, cancel := context.WithTimeout(ctx, etlPoll)
		fetches := session.PollRecords(polling, etlTransaction/2)
		cancel()
		if err := fetches.Err(); errors.Is(err, context.DeadlineExceeded) {
			if s.isDone() {
				return nil
			}
			continue
		} else if err != nil {
			return fmt.Errorf("poll: %w", err)
		}
		stays := commits == etlStaysForever || committed < commits
		is, err := s.copy(ctx, session, fetches.Records(), kgo.TransactionEndTry(stays))
		if err != nil || !stays {
			return err
		}
		if is {
			committed++
		}
	}
	return ctx.Err()
}

// leave closes the session. A static member keeps its place for whoever comes back with its instance
// id; franz-go does not name that id when it leaves a consumer group, which is refused.
func (s *etlStage) leave(ctx context.Context, session *kgo.GroupTransactSession, instance string) {
	member, generation := session.Client().GroupMetadata()
	session.Close()
	if !s.isStatic || generation < 0 {
		return
	}
	request := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	request.Group, request.MemberID, request.InstanceID = s.name, member, &instance
	request.MemberEpoch = -2
	// A member of a classic group is unknown to this API, and keeps its place anyway.
	_, _ = request.RequestWith(ctx, s.scene.client)
}

// copy is one transaction; returns whether it was committed.
func (s *etlStage) copy(
	ctx context.Context, session *kgo.GroupTransactSession, records []*kgo.Record, try kgo.TransactionEndTry,
) (bool, error) {
	if err := session.Begin(); err != nil {
		return false, fmt.Errorf("begin: %w", err)
	}
	failed := make(chan error, len(records))
	copied := make([]place, len(records))
	for at, record := range records {
		number, err := strconv.Atoi(string(record.Value))
		if err != nil {
			return false, fmt.Errorf("a record of an aborted transaction is read: %q", record.Value)
		}
		copied[at] = place{record.Partition, record.Offset, number}
		session.Produce(ctx, &kgo.Record{Key: record.Key, Value: record.Value},
			func(_ *kgo.Record, err error) {
				if err != nil && !errors.Is(err, kgo.ErrAborting) {
					failed <- fmt.Errorf("produce: %w", err)
				}
			})
	}
	is, err := session.End(ctx, try)
	if err != nil {
		return false, fmt.Errorf("end: %w", err)
	}
	select {
	case err := <-failed:
		return false, err
	default:
	}
	if is {
		err = s.committed(copied)
	}
	return is, err
}

// run has members come, leave in the middle of a transaction, and come back.
func (s *etlStage) run(ctx context.Context) error {
	lives := [][]int{
		{etlStaysForever},
		{etlStaysForever},
		// One that leaves at once with an abort, then after two transactions, and comes back.
		{0, 2, etlStaysForever},
	}
	if !s.isStatic {
		// A static member that does not come back would keep its partitions for a session timeout.
		lives = append(lives, []int{1})
	}
	return together(ctx, len(lives), len(lives), func(ctx context.Context, at int) error {
		return s.member(ctx, at, lives[at]...)
	})
}

// together runs `count` functions, at most `atATime` of them at once. The first error ends all.
func together(
	ctx context.Context, count, atATime int, run func(context.Context, int) error,
) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	turns := make(chan struct{}, atATime)
	all := sync.WaitGroup{}
	for at := range count {
		all.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			if err := run(ctx, at); err != nil {
				cancel(err)
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}

// fill writes the numbers from 0 in transactions, and after each a transaction that is aborted.
func fill(ctx context.Context, scene *Scene, topic string, records int) error {
	client, err := scene.Client(
		kgo.DefaultProduceTopic(topic), kgo.TransactionalID(topic), kgo.UnknownTopicRetries(-1))
	if err != nil {
		return err
	}
	defer client.Close()
	for start := 0; start < records; start += etlTransaction {
		values := []string{}
		for number := start; number < min(start+etlTransaction, records); number++ {
			values = append(values, strconv.Itoa(number))
		}
		for _, end := range []kgo.TransactionEndTry{kgo.TryCommit, kgo.TryAbort} {
			if err := client.BeginTransaction(); err != nil {
				return err
			}
			batch := make([]*kgo.Record, len(values))
			for at, value := range values {
				batch[at] = &kgo.Record{Key: []byte(value), Value: []byte(value)}
				if end == kgo.TryAbort {
					batch[at].Value = []byte(etlGarbage)
				}
			}
			if err := client.ProduceSync(ctx, batch...).FirstErr(); err != nil {
				return fmt.Errorf("fill: %w", err)
			}
			if err := client.EndTransaction(ctx, end); err != nil {
				return fmt.Errorf("fill: %w", err)
			}
		}
	}
	return nil
}

// holds is an error unless the topic's committed records are the numbers, each once.
func holds(ctx context.Context, scene *Scene, topic string, records int) error {
	ends, err := scene.Admin.ListCommittedOffsets(ctx, topic)
	if err != nil {
		return err
	}
	client, err := scene.Client(
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	seen := make([]bool, records)
	count := 0
	left := 0
	for _, end := range ends[topic] {
		if end.Offset > 0 {
			left++
		}
	}
	for left > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return fmt.Errorf("read %s, %d of %d: %w", topic, count, records, err)
		}
		for iter := fetches.RecordIter(); !iter.Done(); {
			record := iter.Next()
			// Each log ends with a marker.
			if record.Offset == ends[topic][record.Partition].Offset-1 {
				left--
			}
			if record.Attrs.IsControl() {
				continue
			}
			number, err := strconv.Atoi(string(record.Value))
			if err != nil || seen[number] {
				return fmt.Errorf("%s-%d has %q again, or at all", topic, record.Partition, record.Value)
			}
			seen[number] = true
			count++
		}
	}
	return expect("records in "+topic, count, records)
}

// extractTransformLoad has groups of every kind copy a topic in two stages, exactly once, while
// their members come, leave in the middle of transactions, and come back.
func extractTransformLoad(ctx context.Context, scene *Scene) (Result, error) {
	topic := func(name string) (string, error) { return scene.NewTopic(ctx, name, etlPartitions) }
	source, err := topic("source")
	if err != nil {
		return nil, err
	}
	filling := make(chan error, 1)
	go func() { filling <- fill(ctx, scene, source, scene.Records) }()
	took := make([]float64, len(etlConfigs))
	err = together(ctx, len(etlConfigs), etlAtATime, func(ctx context.Context, at int) error {
		config, start := etlConfigs[at], time.Now()
		stages := make([]*etlStage, etlStages)
		for number := range stages {
			name := fmt.Sprintf("%s-%d", config.name, number)
			from := source
			if number > 0 {
				from = stages[number-1].sink
			}
			sink, err := topic(name)
			if err != nil {
				return err
			}
			stages[number] = &etlStage{
				scene: scene, name: scene.Name + "-" + name, source: from, sink: sink,
				isStatic: config.isStatic, options: config.options, records: scene.Records,
				offsets: map[[2]int64]bool{}, seen: make([]bool, scene.Records),
			}
		}
		err := together(ctx, etlStages, etlStages, func(ctx context.Context, number int) error {
			return stages[number].run(ctx)
		})
		if err != nil {
			return err
		}
		took[at] = time.Since(start).Seconds()
		return holds(ctx, scene, stages[etlStages-1].sink, scene.Records)
	})
	if err != nil {
		return nil, err
	}
	result := Result{"records": scene.Records}
	for at, config := range etlConfigs {
		result[config.name+"_s"] = fmt.Sprintf("%.1f", took[at])
	}
	return result, <-filling
}
