// Package record is the raw Kafka record as it was delivered. Goka hands a callback a key as string, headers as a map and
// a decoded value, which loses null keys and repeated headers; a dead letter must carry the record as it came.
package record

import (
	"fmt"
	"strings"
	"time"
)

// Header is one record header. A key may repeat; the order is the producer's.
type Header struct {
	Key   string
	Value []byte
}

// ID says where a record lies. It identifies the record within one incarnation (topic id) of its topic.
type ID struct {
	Topic     string
	Partition int32
	Offset    int64
}

// String is the form used in logs and errors: topic/partition@offset.
func (id ID) String() string { return fmt.Sprintf("%s/%d@%d", id.Topic, id.Partition, id.Offset) }

// Record is one record as Kafka delivered it. Key and Value are nil where Kafka had null, which is not the same as empty.
// Records are shared between goroutines and must not be changed.
type Record struct {
	ID
	Key       []byte
	Value     []byte
	Headers   []Header
	Timestamp time.Time
}

// Size is how many bytes key, value and headers have.
func (r *Record) Size() int {
	n := len(r.Key) + len(r.Value)
	for i := range r.Headers {
		n += len(r.Headers[i].Key) + len(r.Headers[i].Value)
	}
	return n
}

// Header returns the value of the last header of that name (Kafka's own lastHeader rule); names compare without case.
func (r *Record) Header(name string) ([]byte, bool) {
	for i := len(r.Headers) - 1; i >= 0; i-- {
		if len(r.Headers[i].Key) == len(name) && strings.EqualFold(r.Headers[i].Key, name) {
			return r.Headers[i].Value, true
		}
	}
	return nil, false
}
