package tablestore

import (
	"cmp"
	"errors"
	"fmt"
	"time"
)

// Config says where and how tables are kept. The zero value of every field but Dir means its default.
type Config struct {
	// Dir holds one directory <topic>.<partition> for each table partition.
	Dir string
	// Follow is for Goka views, which only read the topic: every higher offset passes at any time. A processor that
	// writes the table must leave it false, or a late acknowledgement can hide another owner's writes (E2).
	Follow bool
	// FlushWrites is the number of unflushed writes that starts a flush; writers wait at four times this number. Default 20,000.
	FlushWrites int
	// FlushBytes is the same limit in bytes of keys and values. Default 4 MiB.
	FlushBytes int
	// FlushInterval is the longest time a write stays in memory only. Default 1 s.
	FlushInterval time.Duration
	// FilterSaveInterval is the shortest time between two snapshots of the filter. Default 1 m.
	FilterSaveInterval time.Duration
	// WriteBuffer is the size of LevelDB's memory table in bytes; a store holds up to two. Default 16 MiB.
	WriteBuffer int
	// BlockCache is the size of LevelDB's block cache in bytes, for each store. Default 8 MiB.
	BlockCache int
	// CloseTimeout bounds Close, which flushes first. Default 30 s.
	CloseTimeout time.Duration
}

const (
	defaultFlushWrites        = 20_000
	defaultFlushBytes         = 4 << 20
	defaultFlushInterval      = time.Second
	defaultFilterSaveInterval = time.Minute
	defaultWriteBuffer        = 16 << 20
	defaultBlockCache         = 8 << 20
	defaultCloseTimeout       = 30 * time.Second

	// blockFactor times the flush limit is where Set waits for the disk.
	blockFactor = 4
)

func (c Config) withDefaults() Config {
	c.FlushWrites = cmp.Or(c.FlushWrites, defaultFlushWrites)
	c.FlushBytes = cmp.Or(c.FlushBytes, defaultFlushBytes)
	c.FlushInterval = cmp.Or(c.FlushInterval, defaultFlushInterval)
	c.FilterSaveInterval = cmp.Or(c.FilterSaveInterval, defaultFilterSaveInterval)
	c.WriteBuffer = cmp.Or(c.WriteBuffer, defaultWriteBuffer)
	c.BlockCache = cmp.Or(c.BlockCache, defaultBlockCache)
	c.CloseTimeout = cmp.Or(c.CloseTimeout, defaultCloseTimeout)
	return c
}

// Validate returns every fault of the configuration at once, or nil. Zero values are no faults: they mean the default.
func (c Config) Validate() error {
	var faults []error
	if c.Dir == "" {
		faults = append(faults, errors.New("table store: dir is empty; give the state directory"))
	}
	atLeast := func(name string, value, least int, unit string) {
		if value != 0 && value < least {
			faults = append(faults, fmt.Errorf("table store: %s is %d, it must be 0 (default) or at least %d%s", name, value, least, unit))
		}
	}
	atLeast("flush writes", c.FlushWrites, 1, "")
	atLeast("flush bytes", c.FlushBytes, 1, " byte")
	atLeast("write buffer", c.WriteBuffer, 4<<10, " bytes")
	atLeast("block cache", c.BlockCache, 4<<10, " bytes")
	atLeastMilli := func(name string, value time.Duration) {
		if value != 0 && value < time.Millisecond {
			faults = append(faults, fmt.Errorf("table store: %s is %s, it must be 0 (default) or at least 1ms", name, value))
		}
	}
	atLeastMilli("flush interval", c.FlushInterval)
	atLeastMilli("filter save interval", c.FilterSaveInterval)
	atLeastMilli("close timeout", c.CloseTimeout)
	return errors.Join(faults...)
}
