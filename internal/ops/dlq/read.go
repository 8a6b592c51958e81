package dlq

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/stream"
)

// bounds are the records of a topic that there are, by partition.
type bounds = map[int32]stream.Range

// topic is a dead-letter topic as it is now.
type topic struct {
	name   string
	id     stream.TopicID
	bounds bounds
}

// look asks the broker for a topic. One that does not exist has no letters.
func (s *Service) look(ctx context.Context, name string) (topic, error) {
	t := topic{name: name, bounds: bounds{}}
	known, err := s.Admin.Topics(ctx, name)
	if err != nil {
		return t, err
	}
	info, ok := known[name]
	if !ok {
		return t, nil
	}
	t.id = info.ID
	t.bounds, err = s.Admin.Ranges(ctx, name)
	return t, err
}

// Filter chooses letters. Zero fields choose all.
type Filter struct {
	Code  string    `json:"code"`
	Key   string    `json:"key"` // exactly; a Guid in any case
	Since time.Time `json:"since"`
	Until time.Time `json:"until"`
	State string    `json:"state"` // one of the states; empty: all but dropped; all
}

// Empty tells whether the filter chooses everything.
func (f Filter) Empty() bool {
	return f.Code == "" && f.Key == "" && f.Since.IsZero() && f.Until.IsZero() && f.State == ""
}

// Validate says what is wrong, for the caller.
func (f Filter) Validate() error {
	switch f.State {
	case "", "all", StateWaiting, StateReplayed, StateDropped, StateParked:
	default:
		return fmt.Errorf("state %q is none of waiting, replayed, dropped, parked, all", f.State)
	}
	if !f.Since.IsZero() && !f.Until.IsZero() && f.Until.Before(f.Since) {
		return errors.New("until lies before since")
	}
	return nil
}

// matches judges everything but the state.
func (f Filter) matches(l *Letter) bool {
	switch {
	case f.Code != "" && !strings.EqualFold(l.Code, f.Code):
		return false
	case f.Key != "" && (l.rec.Key == nil || !strings.EqualFold(string(l.rec.Key), f.Key)):
		return false
	case !f.Since.IsZero() && l.Timestamp.Before(f.Since):
		return false
	case !f.Until.IsZero() && l.Timestamp.After(f.Until):
		return false
	}
	return true
}

func (f Filter) admits(state string) bool {
	switch f.State {
	case "":
		return state != StateDropped
	case "all":
		return true
	}
	return state == f.State
}

// Page is a part of a list, newest first.
type Page struct {
	Consumer string   `json:"consumer"`
	Topic    string   `json:"topic"`
	Items    []Letter `json:"items"`
	Scanned  int      `json:"scanned"`              // letters looked at for this page
	Next     string   `json:"nextCursor,omitempty"` // send it for what follows; there may be none that match
	Problems []string `json:"problems,omitempty"`
	// Missing says that the topic does not exist: that there are no letters then means nothing.
	Missing bool `json:"missing,omitempty"`
}

// NoTopic is what to tell when a page is Missing.
func (p *Page) NoTopic() string {
	return fmt.Sprintf("the dead-letter topic %s does not exist, and while it does not, records that belong there hold up their partitions: create it with `vitrina topics apply`", p.Topic)
}

// Bounds of a page. A filter that matches little must not read a whole topic in one call.
const (
	DefaultLimit = 50
	MaxLimit     = 1000
	maxScanned   = 50_000
	firstChunk   = 200
	largestChunk = 5_000
	// skew is how far the clocks of writers may lie apart: letters older than since by more end the reading.
	skew = 10 * time.Minute
)

// ErrCursor says that a cursor is none of ours, or of a topic that was made anew.
var ErrCursor = errors.New("the cursor cannot be read: take nextCursor of the page before as it is, with the same consumer")

type cursor struct {
	Topic stream.TopicID  `json:"t"`
	Below map[int32]int64 `json:"b"`
}

// List returns one page of a consumer's letters, newest first.
func (s *Service) List(ctx context.Context, c config.Consumer, f Filter, limit int, after string) (*Page, error) {
	page := &Page{Consumer: c.Role, Topic: c.DLQ, Items: []Letter{}}
	t, err := s.look(ctx, c.DLQ)
	if err != nil {
		return nil, err
	}
	page.Missing = t.id == (stream.TopicID{})
	limit = min(max(limit, 1), MaxLimit)
	if after != "" {
		if err := t.below(after); err != nil {
			return nil, err
		}
	}
	back := &backwards{service: s, topic: t, consumer: c.Role, chunk: max(firstChunk, int64(min(limit, largestChunk)))}
	for len(page.Items) < limit && page.Scanned < maxScanned {
		l, err := back.next(ctx, f.Since)
		if err != nil {
			return nil, err
		}
		if back.problem != nil {
			page.Problems = []string{back.problem.Error()}
		}
		if l == nil {
			return page, nil
		}
		page.Scanned++
		if f.matches(l) && (f.admits(l.State) || l.State == StateUnknown) {
			page.Items = append(page.Items, *l)
		}
	}
	page.Next, err = back.cursor()
	return page, err
}

func (t *topic) below(after string) error {
	raw, err := base64.RawURLEncoding.DecodeString(after)
	var c cursor
	if err != nil || json.Unmarshal(raw, &c) != nil || c.Topic != t.id {
		return ErrCursor
	}
	for p, b := range t.bounds {
		to := c.Below[p] // a partition that is new since has only newer letters
		t.bounds[p] = stream.Range{From: b.From, To: max(b.From, min(b.To, to))}
	}
	return nil
}

// backwards merges the partitions of a topic, newest first, reading each in chunks from its end.
type backwards struct {
	service  *Service
	topic    topic
	consumer string
	chunk    int64
	held     map[int32][]Letter // read and not yet given, newest last; bounds[p].to is the first offset that was read
	problem  error              // why states are unknown
}

func (b *backwards) next(ctx context.Context, since time.Time) (*Letter, error) {
	if err := b.fill(ctx); err != nil {
		return nil, err
	}
	var newest *Letter
	for _, list := range b.held {
		if len(list) == 0 {
			continue
		}
		l := &list[len(list)-1]
		if newest == nil || newer(l, newest) {
			newest = l
		}
	}
	if newest == nil || !since.IsZero() && newest.Timestamp.Before(since.Add(-skew)) {
		b.held, b.topic.bounds = nil, bounds{}
		return nil, nil
	}
	l := *newest
	b.held[l.Partition] = b.held[l.Partition][:len(b.held[l.Partition])-1]
	return &l, nil
}

func newer(a, b *Letter) bool {
	if c := a.Timestamp.Compare(b.Timestamp); c != 0 {
		return c > 0
	}
	if a.Partition != b.Partition {
		return a.Partition < b.Partition
	}
	return a.Offset > b.Offset
}

// fill reads the next chunk of every partition that has nothing left to give.
func (b *backwards) fill(ctx context.Context) error {
	if b.held == nil {
		b.held = make(map[int32][]Letter)
	}
	for {
		ranges := bounds{}
		for p, r := range b.topic.bounds {
			if len(b.held[p]) == 0 && r.From < r.To {
				ranges[p] = stream.Range{From: max(r.From, r.To-b.chunk), To: r.To}
			}
		}
		if len(ranges) == 0 {
			return nil
		}
		err := b.service.Admin.ReadRanges(ctx, b.topic.name, ranges, func(rec *kgo.Record) (bool, error) {
			b.held[rec.Partition] = append(b.held[rec.Partition], read(b.consumer, rec))
			return true, nil
		})
		if err != nil {
			return err
		}
		var fresh []*Letter
		for p, r := range ranges {
			b.topic.bounds[p] = stream.Range{From: b.topic.bounds[p].From, To: r.From}
			for i := range b.held[p] {
				fresh = append(fresh, &b.held[p][i])
			}
		}
		if err := b.service.states(ctx, b.topic, fresh); err != nil {
			b.problem = err
		}
		b.chunk = min(2*b.chunk, largestChunk)
	}
}

// cursor is where the next page begins; empty at the end.
func (b *backwards) cursor() (string, error) {
	c := cursor{Topic: b.topic.id, Below: map[int32]int64{}}
	more := false
	for p, r := range b.topic.bounds {
		c.Below[p] = r.To
		if list := b.held[p]; len(list) > 0 {
			c.Below[p] = list[len(list)-1].Offset + 1
		}
		more = more || c.Below[p] > r.From
	}
	if !more {
		return "", nil
	}
	raw, err := json.Marshal(c)
	if err != nil {
		return "", fmt.Errorf("make the cursor: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(raw), nil
}

// NotFoundError says which letters do not exist, or not any more.
type NotFoundError struct {
	Topic string
	IDs   []string
}

func (e *NotFoundError) Error() string {
	return fmt.Sprintf("topic %s has no dead letter %s (its retention may have deleted it)", e.Topic, strings.Join(e.IDs, ", "))
}

// Get returns letters by their ids, with headers and payload, in the order of the ids.
func (s *Service) Get(ctx context.Context, c config.Consumer, ids ...string) ([]Letter, error) {
	t, err := s.look(ctx, c.DLQ)
	if err != nil {
		return nil, err
	}
	byID, err := s.fetch(ctx, c, t, ids)
	if err != nil {
		return nil, err
	}
	out := make([]Letter, 0, len(ids))
	letters := make([]*Letter, 0, len(ids))
	for _, id := range ids {
		p, o, err := ParseID(id)
		if err != nil {
			return nil, err
		}
		l := byID[ID(p, o)]
		l.show()
		letters = append(letters, l)
	}
	if err := s.states(ctx, t, letters); err != nil {
		s.Logger.LogAttrs(ctx, slog.LevelWarn, err.Error(), slog.String("event", "dead-letter-states-unknown"), slog.String("topic", t.name))
	}
	for _, l := range letters {
		out = append(out, *l)
	}
	return out, nil
}

// fetch reads chosen letters: one reading takes one range of each partition, near neighbours together.
func (s *Service) fetch(ctx context.Context, c config.Consumer, t topic, ids []string) (map[string]*Letter, error) {
	wanted := make(map[string]bool)
	offsets := make(map[int32][]int64)
	missing := &NotFoundError{Topic: t.name}
	for _, id := range ids {
		p, o, err := ParseID(id)
		if err != nil {
			return nil, err
		}
		if r, ok := t.bounds[p]; !ok || o < r.From || o >= r.To {
			missing.IDs = append(missing.IDs, id)
			continue
		}
		if !wanted[ID(p, o)] {
			wanted[ID(p, o)] = true
			offsets[p] = append(offsets[p], o)
		}
	}
	if len(missing.IDs) > 0 {
		return nil, missing
	}
	got := make(map[string]*Letter)
	for len(offsets) > 0 {
		ranges := bounds{}
		for p, list := range offsets {
			slices.Sort(list)
			n := 1
			for n < len(list) && list[n]-list[n-1] < firstChunk {
				n++
			}
			ranges[p] = stream.Range{From: list[0], To: list[n-1] + 1}
			if offsets[p] = list[n:]; n == len(list) {
				delete(offsets, p)
			}
		}
		err := s.Admin.ReadRanges(ctx, t.name, ranges, func(rec *kgo.Record) (bool, error) {
			if id := ID(rec.Partition, rec.Offset); wanted[id] {
				l := read(c.Role, rec)
				got[id] = &l
			}
			return true, nil
		})
		if err != nil {
			return nil, err
		}
	}
	for id := range wanted {
		if got[id] == nil {
			missing.IDs = append(missing.IDs, id)
		}
	}
	if len(missing.IDs) > 0 {
		slices.Sort(missing.IDs)
		return nil, missing
	}
	return got, nil
}
