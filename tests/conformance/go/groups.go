package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	partitions = 6
	batch      = 300
)

// Protocol is how members speak to the group, and what its type is then called.
type Protocol struct {
	options   []kgo.Opt
	groupType string
}

var (
	cooperative = Protocol{
		[]kgo.Opt{kgo.Balancers(kgo.CooperativeStickyBalancer())}, "classic",
	}
	consumerProtocol = Protocol{
		[]kgo.Opt{kgo.Balancers(kgo.StickyBalancer()), kgo.ServerSideBalancer()}, "consumer",
	}
)

// Member reads in a group until it is stopped, and commits before it gives partitions up.
type Member struct {
	client  *kgo.Client
	done    chan struct{}
	room    *Room
	owned   map[int32]bool
	lost    int
	taken   int
	leaving bool
}

// Room is what all members of a group have read.
type Room struct {
	mutex   sync.Mutex
	changed chan struct{}
	seen    map[string]int
	failed  error
}

func newRoom() *Room {
	return &Room{changed: make(chan struct{}), seen: map[string]int{}}
}

// change lets whoever waits look again.
func (r *Room) change(apply func()) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	apply()
	close(r.changed)
	r.changed = make(chan struct{})
}

// wait returns when it is so.
func (r *Room) wait(ctx context.Context, what string, isSo func() bool) error {
	for {
		r.mutex.Lock()
		changed, is, failed := r.changed, isSo(), r.failed
		r.mutex.Unlock()
		if failed != nil || is {
			return failed
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("not in time: %s", what)
		}
	}
}

func (r *Room) join(scene *Scene, protocol Protocol, options ...kgo.Opt) (*Member, error) {
	member := &Member{room: r, done: make(chan struct{}), owned: map[int32]bool{}}
	options = append(options,
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.BlockRebalanceOnPoll(),
		kgo.DisableAutoCommit(),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, given map[string][]int32) {
			member.own(given, true)
		}),
		kgo.OnPartitionsRevoked(func(ctx context.Context, client *kgo.Client, taken map[string][]int32) {
			if err := client.CommitUncommittedOffsets(ctx); err != nil {
				r.change(func() { r.failed = err })
			}
			r.change(func() { member.taken += len(slices.Concat(slices.Collect(maps.Values(taken))...)) })
			member.own(taken, false)
		}),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, lost map[string][]int32) {
			r.change(func() { member.lost++ })
			member.own(lost, false)
		}),
	)
	client, err := scene.Client(append(options, protocol.options...)...)
	if err != nil {
		return nil, err
	}
	member.client = client
	go member.read()
	return member, nil
}

func (m *Member) own(changed map[string][]int32, is bool) {
	m.room.change(func() {
		for _, indexes := range changed {
			for _, index := range indexes {
				if is {
					m.owned[index] = true
				} else {
					delete(m.owned, index)
				}
			}
		}
	})
}

func (m *Member) read() {
	defer close(m.done)
	for {
		fetches := m.client.PollFetches(context.Background())
		if fetches.IsClientClosed() {
			return
		}
		m.room.change(func() {
			// A heartbeat that is being repeated when the member leaves is reported.
			if err := fetches.Err(); err != nil && !m.leaving {
				m.room.failed = err
			}
			fetches.EachRecord(func(record *kgo.Record) { m.room.seen[string(record.Value)]++ })
		})
		m.client.AllowRebalance()
	}
}

// leave gives everything back, and returns when the member has gone.
func (m *Member) leave() {
	m.room.change(func() { m.leaving = true })
	m.client.CloseAllowingRebalance()
	<-m.done
}

func share(members []*Member, low, high int) bool {
	whole := map[int32]bool{}
	count := 0
	for _, member := range members {
		if len(member.owned) < low || len(member.owned) > high {
			return false
		}
		count += len(member.owned)
		maps.Copy(whole, member.owned)
	}
	return count == partitions && len(whole) == partitions
}

// group has members come and go while records are written: each is read once, and who stays is
// asked for no more than it must give.
func group(protocol Protocol) Scenario {
	return func(ctx context.Context, scene *Scene) (Result, error) {
		topic, err := scene.NewTopic(ctx, "topic", partitions)
		if err != nil {
			return nil, err
		}
		name := scene.Name + "-group"
		room := newRoom()
		members := []*Member{}
		for count := 1; count <= 3; count++ {
			member, err := room.join(scene, protocol, kgo.ConsumerGroup(name), kgo.ConsumeTopics(topic))
			if err != nil {
				return nil, err
			}
			members = append(members, member)
			if err := scene.Write(ctx, topic, (count-1)*batch, batch); err != nil {
				return nil, err
			}
			each := partitions / count
			if err := room.wait(ctx, fmt.Sprintf("%d members share", count), func() bool {
				return share(members, each, each) && len(room.seen) == count*batch
			}); err != nil {
				return nil, err
			}
		}
		listed, err := scene.Admin.ListGroupsByType(ctx, []string{protocol.groupType})
		if err != nil {
			return nil, err
		}
		if err := expect(protocol.groupType+" group", listed[name].Group, name); err != nil {
			return nil, err
		}
		members[2].leave()
		if err := room.wait(ctx, "two share again", func() bool {
			return share(members[:2], 3, 3)
		}); err != nil {
			return nil, err
		}
		if err := scene.Write(ctx, topic, 3*batch, batch); err != nil {
			return nil, err
		}
		if err := room.wait(ctx, "the two have read on", func() bool {
			return len(room.seen) == 4*batch
		}); err != nil {
			return nil, err
		}
		members[0].leave()
		members[1].leave()
		// The first gave three to the second, and one of those left to the third.
		if err := expect("taken from the first before it left", members[0].taken-3, 4); err != nil {
			return nil, err
		}
		for value, count := range room.seen {
			if count != 1 {
				return nil, fmt.Errorf("record %s was read %d times", value, count)
			}
		}
		lost := members[0].lost + members[1].lost + members[2].lost
		if err := expect("partitions lost", lost, 0); err != nil {
			return nil, err
		}
		return Result{"records": len(room.seen)}, committed(ctx, scene, name, 4*batch)
	}
}

// committed is an error unless the group has committed so many records, and where each log ends.
func committed(ctx context.Context, scene *Scene, name string, wanted int64) error {
	offsets, err := scene.Admin.FetchOffsets(ctx, name)
	if err != nil {
		return err
	}
	total := int64(0)
	for _, indexes := range offsets {
		for _, offset := range indexes {
			total += offset.At
		}
	}
	if err := expect("committed", total, wanted); err != nil {
		return err
	}
	ends, err := scene.Admin.ListEndOffsets(ctx, slices.Collect(maps.Keys(offsets))...)
	if err != nil {
		return err
	}
	for topic, indexes := range offsets {
		for index, offset := range indexes {
			end, _ := ends.Lookup(topic, index)
			if err := expect(fmt.Sprintf("committed in %s-%d", topic, index), offset.At, end.Offset); err != nil {
				return err
			}
		}
	}
	return nil
}

// subscribeByRegex has the broker find the topics, one of which is made later.
func subscribeByRegex(ctx context.Context, scene *Scene) (Result, error) {
	room := newRoom()
	first, err := scene.NewTopic(ctx, "read-1", 1)
	if err != nil {
		return nil, err
	}
	ignored, err := scene.NewTopic(ctx, "other", 1)
	if err != nil {
		return nil, err
	}
	member, err := room.join(scene, consumerProtocol,
		kgo.ConsumerGroup(scene.Name+"-group"),
		kgo.ConsumeRegex(), kgo.ConsumeTopics("^"+scene.Name+"-read-[0-9]+$"))
	if err != nil {
		return nil, err
	}
	for at, topic := range []string{ignored, first, "read-2"} {
		if at == 2 {
			if topic, err = scene.NewTopic(ctx, topic, 1); err != nil {
				return nil, err
			}
		}
		if err := scene.Write(ctx, topic, at*10, 10); err != nil {
			return nil, err
		}
		if err := room.wait(ctx, topic+" is read", func() bool { return len(room.seen) == at*10 }); err != nil {
			return nil, err
		}
	}
	member.leave()
	_, is := room.seen["0"]
	return Result{"records": len(room.seen)}, expect("a topic that does not match is read", is, false)
}
