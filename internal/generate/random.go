package generate

import (
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
)

// source is a stream of choices of its own: an option of one stream changes no other one.
type source struct{ *rand.Rand }

func newSource(seed, stream uint64) source {
	return source{rand.New(rand.NewPCG(seed, stream*0x9e3779b97f4a7c15+1))}
}

func (s source) chance(share float64) bool { return share > 0 && s.Float64() < share }

// between is a whole number from low to high, both included.
func (s source) between(low, high int) int { return low + s.IntN(high-low+1) }

// id7 is a UUID of version 7 for that time.
func (s source) id7(at time.Time) uuid.UUID {
	id := s.bits()
	ms := uint64(at.UnixMilli())
	for i := range 6 {
		id[i] = byte(ms >> (40 - 8*i))
	}
	id[6] = 0x70 | id[6]&0x0f
	id[8] = 0x80 | id[8]&0x3f
	return id
}

// id4 is a random UUID of version 4.
func (s source) id4() uuid.UUID {
	id := s.bits()
	id[6] = 0x40 | id[6]&0x0f
	id[8] = 0x80 | id[8]&0x3f
	return id
}

func (s source) bits() (id uuid.UUID) {
	high, low := s.Uint64(), s.Uint64()
	for i := range 8 {
		id[i] = byte(high >> (56 - 8*i))
		id[8+i] = byte(low >> (56 - 8*i))
	}
	return id
}

func pick[T any](s source, items []T) T { return items[s.IntN(len(items))] }
