package batch

import "time"

// tail is what belongs to a value besides itself.
type tail struct {
	done    func(error)
	session *session // nil: never ends
	size    int
}

// chunk is a batch: filled while it waits, frozen once the runner has taken it.
type chunk[T any] struct {
	values []T
	tails  []tail
	bytes  int       // Size of its items
	first  time.Time // when its first item came
}

func (c *chunk[T]) len() int { return len(c.tails) }

// without removes and returns the items that give(session) picks. The slices are made anew, not changed: a Flush may be
// reading the old ones.
func (c *chunk[T]) without(give func(*session) bool) []tail {
	var given []tail
	for _, t := range c.tails {
		if t.session != nil && give(t.session) {
			given = append(given, t)
			c.bytes -= t.size
		}
	}
	if len(given) == 0 {
		return nil
	}
	values := make([]T, 0, len(c.values)-len(given))
	tails := make([]tail, 0, len(c.tails)-len(given))
	for i, t := range c.tails {
		if t.session != nil && give(t.session) {
			continue
		}
		values = append(values, c.values[i])
		tails = append(tails, t)
	}
	c.values, c.tails = values, tails
	return given
}

// take empties the chunk.
func (c *chunk[T]) take() []tail {
	tails := c.tails
	c.values, c.tails, c.bytes = nil, nil, 0
	return tails
}

// spare is the memory of settled batches, for the next ones: full batches are megabytes, and growing each by doubling costs more
// than filling it. It holds as much as two batches and nothing else: what was in it is cleared.
type spare[T any] struct {
	values [][]T
	tails  [][]tail
}

const maxSpare = 2

func (s *spare[T]) chunk(first time.Time) *chunk[T] {
	c := &chunk[T]{first: first}
	if n := len(s.values); n > 0 {
		c.values, s.values = s.values[n-1], s.values[:n-1]
		c.tails, s.tails = s.tails[n-1], s.tails[:n-1]
	}
	return c
}

// keep takes the slices of a batch that nobody reads any more.
func (s *spare[T]) keep(values []T, tails []tail) {
	if len(s.values) >= maxSpare {
		return
	}
	clear(values)
	clear(tails)
	s.values, s.tails = append(s.values, values[:0]), append(s.tails, tails[:0])
}
