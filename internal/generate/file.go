package generate

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"
	"unicode/utf8"

	"github.com/pin-marketplace/vitrina/internal/record"
)

// line is an item in a file of JSON lines. Texts are written as they are, other bytes in base64; null has no property.
type line struct {
	At          time.Time  `json:"at"`
	Card        *Card      `json:"card,omitempty"`
	Topic       string     `json:"topic,omitempty"`
	Key         *string    `json:"key,omitempty"`
	KeyBase64   []byte     `json:"keyBase64,omitempty"`
	Value       *string    `json:"value,omitempty"`
	ValueBase64 []byte     `json:"valueBase64,omitempty"`
	Headers     []lineHead `json:"headers,omitempty"`
	Malformed   string     `json:"malformed,omitempty"`
}

type lineHead struct {
	Key         string  `json:"key"`
	Value       *string `json:"value,omitempty"`
	ValueBase64 []byte  `json:"valueBase64,omitempty"`
}

func split(b []byte) (text *string, binary []byte) {
	switch {
	case b == nil:
		return nil, nil
	case utf8.Valid(b):
		s := string(b)
		return &s, nil
	default:
		return nil, b
	}
}

func join(text *string, binary []byte) []byte {
	if text != nil {
		return []byte(*text)
	}
	return binary
}

// FileWriter writes items as JSON lines. It is for one goroutine.
type FileWriter struct {
	buffer  *bufio.Writer
	encoder *json.Encoder
}

// NewFileWriter writes to w; call Flush at the end.
func NewFileWriter(w io.Writer) *FileWriter {
	buffer := bufio.NewWriterSize(w, 1<<16)
	encoder := json.NewEncoder(buffer)
	encoder.SetEscapeHTML(false)
	return &FileWriter{buffer: buffer, encoder: encoder}
}

// Write writes one item.
func (w *FileWriter) Write(item Item) error {
	l := line{At: item.At, Card: item.Card, Malformed: item.Malformed}
	if rec := item.Record; rec != nil {
		l.Topic = rec.Topic
		l.Key, l.KeyBase64 = split(rec.Key)
		l.Value, l.ValueBase64 = split(rec.Value)
		for _, h := range rec.Headers {
			text, binary := split(h.Value)
			l.Headers = append(l.Headers, lineHead{Key: h.Key, Value: text, ValueBase64: binary})
		}
	}
	if err := w.encoder.Encode(l); err != nil {
		return fmt.Errorf("write an item: %w", err)
	}
	return nil
}

// Flush writes what is still buffered.
func (w *FileWriter) Flush() error {
	if err := w.buffer.Flush(); err != nil {
		return fmt.Errorf("write the last items: %w", err)
	}
	return nil
}

// ReadFile reads what a FileWriter wrote. It ends at the first line it cannot read, with an error that names it.
func ReadFile(r io.Reader) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		lines := bufio.NewReaderSize(r, 1<<16)
		for number := 1; ; number++ {
			text, err := lines.ReadBytes('\n')
			if err != nil && err != io.EOF {
				yield(Item{}, fmt.Errorf("read line %d: %w", number, err))
				return
			}
			last := err == io.EOF
			if len(bytes.TrimSpace(text)) > 0 {
				item, err := readLine(text)
				if err != nil {
					yield(Item{}, fmt.Errorf("line %d: %w", number, err))
					return
				}
				if !yield(item, nil) {
					return
				}
			}
			if last {
				return
			}
		}
	}
}

func readLine(text []byte) (Item, error) {
	var l line
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&l); err != nil {
		return Item{}, fmt.Errorf("is not what vitrina generate writes: %w", err)
	}
	item := Item{At: l.At, Card: l.Card, Malformed: l.Malformed}
	switch {
	case l.Card != nil:
		return item, nil
	case l.Topic == "":
		return Item{}, errors.New("has neither a card nor a topic")
	}
	item.Record = &record.Record{
		ID: record.ID{Topic: l.Topic, Partition: -1, Offset: -1}, Key: join(l.Key, l.KeyBase64), Value: join(l.Value, l.ValueBase64), Timestamp: l.At,
	}
	for _, h := range l.Headers {
		item.Record.Headers = append(item.Record.Headers, record.Header{Key: h.Key, Value: join(h.Value, h.ValueBase64)})
	}
	return item, nil
}
