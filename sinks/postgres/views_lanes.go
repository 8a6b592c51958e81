package postgres

import (
	"context"
	"fmt"
	"sync"

	"github.com/pin-marketplace/vitrina/codecs"
)

// Lane is one partition of one incarnation of the source or the loop topic.
type Lane struct {
	Incarnation uint32 // first four bytes of the topic's id
	Loop        bool
	Partition   int32
	Topic       string // its name, for people
}

// laneKey is what identifies a lane.
type laneKey struct {
	incarnation uint32
	loop        bool
	partition   int32
}

func (l Lane) key() laneKey { return laneKey{l.Incarnation, l.Loop, l.Partition} }

func laneOf(o codecs.Origin) laneKey { return laneKey{o.Incarnation, o.Loop, o.Partition} }

// laneCache knows the numbers of lanes in vitrina.horizons, which never change. Safe for concurrent use.
type laneCache struct {
	source, loop string

	mu      *sync.RWMutex
	numbers map[laneKey]int32
}

func newLaneCache(source, loop string) laneCache {
	return laneCache{source: source, loop: loop, mu: new(sync.RWMutex), numbers: make(map[laneKey]int32)}
}

// of returns the number of a lane that ensure has seen.
func (c *laneCache) of(o codecs.Origin) int32 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.numbers[laneOf(o)]
}

// ensure makes rows for the lanes of values that have none: once for each partition that this instance is assigned.
func (c *laneCache) ensure(ctx context.Context, q Querier, values []ViewItem) error {
	var missing []Lane
	seen := make(map[laneKey]bool)
	c.mu.RLock()
	for i := range values {
		key := laneOf(values[i].Origin)
		if c.numbers[key] != 0 || seen[key] {
			continue
		}
		seen[key] = true
		topic := c.source
		if key.loop {
			topic = c.loop
		}
		missing = append(missing, Lane{Incarnation: key.incarnation, Loop: key.loop, Partition: key.partition, Topic: topic})
	}
	c.mu.RUnlock()
	if len(missing) == 0 {
		return nil
	}
	numbers, err := ensureLanes(ctx, q, missing)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, lane := range missing {
		c.numbers[lane.key()] = numbers[i]
	}
	return nil
}

// laneColumns are lanes as the parallel arrays that the functions of the schema take.
type laneColumns struct {
	incarnations []int64
	loops        []bool
	partitions   []int32
	topics       []string
}

func columnsOf(lanes []Lane) laneColumns {
	c := laneColumns{make([]int64, len(lanes)), make([]bool, len(lanes)), make([]int32, len(lanes)), make([]string, len(lanes))}
	for i, l := range lanes {
		c.incarnations[i], c.loops[i], c.partitions[i], c.topics[i] = int64(l.Incarnation), l.Loop, l.Partition, l.Topic
	}
	return c
}

func ensureLanes(ctx context.Context, q Querier, lanes []Lane) ([]int32, error) {
	var numbers []int32
	c := columnsOf(lanes)
	err := q.QueryRow(ctx, `SELECT vitrina.ensure_lanes($1, $2, $3, $4)`, c.incarnations, c.loops, c.partitions, c.topics).Scan(&numbers)
	if err != nil {
		return nil, fmt.Errorf("numbering %d partitions in vitrina.horizons: %w", len(lanes), err)
	}
	if len(numbers) != len(lanes) {
		return nil, fmt.Errorf("vitrina.horizons has %d of %d partitions just inserted; its rows must not be deleted while writers run", len(numbers), len(lanes))
	}
	return numbers, nil
}
