package guard

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pin-marketplace/vitrina/internal/record"
)

// modelEntry and model are the obvious version of a tracker: keep everything, look at everything.
type modelEntry struct {
	offset int64
	state  state
}

type model struct{ entries []modelEntry }

// next is the offset after the longest finished prefix, -1 when there is none.
func (m *model) next() int64 {
	next := int64(-1)
	for _, e := range m.entries {
		if e.state != finished {
			break
		}
		next = e.offset + 1
	}
	return next
}

func (m *model) find(offset int64) *modelEntry {
	for i := range m.entries {
		if m.entries[i].offset == offset {
			return &m.entries[i]
		}
	}
	return nil
}

func (m *model) count(s state) int {
	n := 0
	for _, e := range m.entries {
		if e.state == s {
			n++
		}
	}
	return n
}

func (m *model) oldest() int64 {
	for _, e := range m.entries {
		if e.state != finished {
			return e.offset
		}
	}
	return -1
}

func rec(offset int64) *record.Record {
	return &record.Record{ID: record.ID{Topic: "t", Partition: 3, Offset: offset}}
}

func TestTrackerAgreesWithModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var m model
		var marks []int64
		now := time.Unix(1000, 0)
		tr := newTracker("t", 3, 1<<20, 1<<30, func(next int64) { marks = append(marks, next) }, func() time.Time { return now })
		records := map[int64]*record.Record{}
		offset := rapid.Int64Range(0, 1000).Draw(t, "start")
		known := func() int64 {
			if len(m.entries) == 0 || rapid.IntRange(0, 19).Draw(t, "unknown") == 0 {
				return rapid.Int64Range(-2, 3000).Draw(t, "any")
			}
			return rapid.SampledFrom(m.entries).Draw(t, "entry").offset
		}
		t.Repeat(map[string]func(*rapid.T){
			"deliver": func(t *rapid.T) {
				for range rapid.IntRange(1, 40).Draw(t, "n") {
					// Control records and compaction leave gaps.
					if rapid.IntRange(0, 9).Draw(t, "gap") == 0 {
						offset += rapid.Int64Range(1, 50).Draw(t, "size")
					}
					r := rec(offset)
					require.Equal(t, delivered, tr.deliver(r))
					records[offset] = r
					m.entries = append(m.entries, modelEntry{offset: offset})
					offset++
				}
			},
			"deliver again": func(t *rapid.T) {
				if len(m.entries) > 0 {
					require.Equal(t, repeated, tr.deliver(rec(m.entries[rapid.IntRange(0, len(m.entries)-1).Draw(t, "i")].offset)))
				}
			},
			"finish": func(t *rapid.T) {
				for range rapid.IntRange(1, 30).Draw(t, "n") {
					o := known()
					tr.finish(o)
					if e := m.find(o); e != nil && e.state == pending {
						e.state = finished
					}
				}
			},
			"finish the oldest ones": func(t *rapid.T) {
				for range rapid.IntRange(1, 60).Draw(t, "n") {
					o := m.oldest()
					tr.finish(o)
					if e := m.find(o); e != nil && e.state == pending {
						e.state = finished
					}
				}
			},
			"abandon": func(t *rapid.T) {
				o := known()
				e := m.find(o)
				want := e != nil && e.state == pending
				require.Equal(t, want, tr.abandon(o, nil))
				if want {
					e.state = abandoned
				}
			},
			"abandon another delivery": func(t *rapid.T) {
				o := known()
				require.False(t, tr.abandon(o, rec(o)))
			},
			"": func(t *rapid.T) {
				require.True(t, slices.IsSorted(marks), "marks went back: %v", marks)
				got := int64(-1)
				if len(marks) > 0 {
					got = marks[len(marks)-1]
				}
				require.Equal(t, m.next(), got, "committed position")
				s := tr.status()
				require.Equal(t, m.next(), s.Next)
				require.Equal(t, m.oldest(), s.Oldest)
				require.Equal(t, m.count(pending), s.Unfinished)
				require.Equal(t, m.count(abandoned), s.Abandoned)
				require.Equal(t, uint64(len(m.entries)), s.Delivered)
				for _, e := range m.entries {
					if e.state == pending {
						require.Same(t, records[e.offset], tr.get(e.offset))
					} else {
						require.Nil(t, tr.get(e.offset))
					}
				}
			},
		})
	})
}

func TestTrackerWaitsForRoom(t *testing.T) {
	tr := newTracker("t", 0, 2, 1<<30, func(int64) {}, time.Now)
	require.Equal(t, delivered, tr.deliver(rec(10)))
	require.Equal(t, delivered, tr.deliver(rec(11)))
	require.Equal(t, full, tr.deliver(rec(12)))
	tr.finish(11) // behind the oldest: the window is as long as before
	require.Equal(t, full, tr.deliver(rec(12)))
	require.Empty(t, tr.room)
	tr.finish(10)
	require.Len(t, tr.room, 1)
	require.Equal(t, delivered, tr.deliver(rec(12)))
}

// A window bounded in records alone held as much memory as the records are large.
func TestTrackerWaitsForBytes(t *testing.T) {
	sized := func(offset int64, value, header int) *record.Record {
		r := rec(offset)
		r.Value, r.Headers = make([]byte, value), []record.Header{{Value: make([]byte, header)}}
		return r
	}
	tr := newTracker("t", 0, 100, 100, func(int64) {}, time.Now)
	require.Equal(t, delivered, tr.deliver(sized(10, 500, 0)), "the first one is let in whatever its size")
	require.Equal(t, full, tr.deliver(sized(11, 1, 0)))
	tr.finish(10)
	require.Len(t, tr.room, 1)
	<-tr.room
	require.Equal(t, delivered, tr.deliver(sized(11, 20, 30)))
	require.Equal(t, delivered, tr.deliver(sized(12, 20, 30)))
	require.Equal(t, full, tr.deliver(sized(13, 1, 0)))
	tr.finish(12) // behind the oldest: its record is let go all the same
	require.Len(t, tr.room, 1)
	<-tr.room
	require.Equal(t, delivered, tr.deliver(sized(13, 60, 0)))
	require.Equal(t, full, tr.deliver(sized(14, 1, 0)))
	require.True(t, tr.abandon(11, nil))
	require.Len(t, tr.room, 1)
	require.Equal(t, delivered, tr.deliver(sized(14, 1, 0)))
}

func TestTrackerSince(t *testing.T) {
	now := time.Unix(100, 0)
	tr := newTracker("t", 0, 10, 1<<30, func(int64) {}, func() time.Time { return now })
	require.Zero(t, tr.status().Since)
	tr.deliver(rec(1))
	now = now.Add(time.Second)
	tr.deliver(rec(2))
	require.Equal(t, time.Unix(100, 0), tr.status().Since)
	now = now.Add(time.Second)
	tr.finish(1)
	require.Equal(t, time.Unix(102, 0), tr.status().Since, "2 is the oldest since 1 was finished")
	tr.finish(2)
	require.Zero(t, tr.status().Since)
	require.Equal(t, int64(-1), tr.status().Oldest)
}

// BenchmarkTracker is one record through the window: delivered, looked up, finished, with 1,000 in flight.
func BenchmarkTracker(b *testing.B) {
	tr := newTracker("t", 0, 1<<20, 1<<30, func(int64) {}, time.Now)
	records := make([]record.Record, 1<<12)
	b.ReportAllocs()
	for i := range int64(b.N) {
		r := &records[i&(1<<12-1)]
		r.Offset = i
		tr.deliver(r)
		tr.get(i)
		if i >= 1000 {
			tr.finish(i - 1000)
		}
	}
}
