package codecs

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pin-marketplace/vitrina/internal/record"
)

func genUUID() *rapid.Generator[uuid.UUID] {
	return rapid.Custom(func(t *rapid.T) (id uuid.UUID) {
		copy(id[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "uuid"))
		return id
	})
}

func genOrigin() *rapid.Generator[Origin] {
	return rapid.Custom(func(t *rapid.T) Origin {
		return Origin{Incarnation: rapid.Uint32().Draw(t, "incarnation"), Loop: rapid.Bool().Draw(t, "loop"),
			Partition: rapid.Int32Min(0).Draw(t, "partition"), Offset: rapid.Int64Min(0).Draw(t, "offset")}
	})
}

func genMark() *rapid.Generator[Mark] {
	return rapid.Custom(func(t *rapid.T) Mark {
		return Mark{Origin: genOrigin().Draw(t, "origin"), ObjectID: genUUID().Draw(t, "object"),
			At: time.Unix(int64(rapid.Uint32().Draw(t, "at")), 0).UTC()}
	})
}

func genBytes() *rapid.Generator[[]byte] {
	return rapid.OneOf(rapid.Just[[]byte](nil), rapid.Just([]byte{}), rapid.SliceOfN(rapid.Byte(), 1, 300))
}

func genRecord() *rapid.Generator[*record.Record] {
	return rapid.Custom(func(t *rapid.T) *record.Record {
		r := &record.Record{Key: genBytes().Draw(t, "key"), Value: genBytes().Draw(t, "value")}
		r.Topic = rapid.StringN(0, 40, -1).Draw(t, "topic")
		r.Partition, r.Offset = rapid.Int32().Draw(t, "partition"), rapid.Int64().Draw(t, "offset")
		if rapid.Bool().Draw(t, "timestamp") {
			r.Timestamp = time.UnixMilli(rapid.Int64Range(-1e15, 1e15).Draw(t, "ms")).UTC()
		}
		for range rapid.IntRange(0, 4).Draw(t, "headers") {
			r.Headers = append(r.Headers, record.Header{Key: rapid.SampledFrom([]string{"", "EventId", "eventid", "x"}).Draw(t, "name"), Value: genBytes().Draw(t, "header")})
		}
		return r
	})
}

func genState() *rapid.Generator[*PurchaseState] {
	return rapid.Custom(func(t *rapid.T) *PurchaseState {
		s := &PurchaseState{Origin: genOrigin().Draw(t, "origin"), Version: rapid.Int64Min(0).Draw(t, "version"),
			Revision: rapid.Int64Min(0).Draw(t, "revision"), Status: rapid.SampledFrom([]Status{StatusActive, StatusExpired, StatusCancelled, StatusPending}).Draw(t, "status"),
			BoostWeight: rapid.Int32Min(0).Draw(t, "weight"), Topic: rapid.StringN(0, 40, maxTopicLen).Draw(t, "topic"),
			EndsAt:          time.Unix(rapid.Int64Range(-62135596800, 253402300799).Draw(t, "ends"), rapid.Int64Range(0, 999_999_999).Draw(t, "nanos")).UTC(),
			SourcePartition: rapid.Int32Min(0).Draw(t, "source partition"), SourceOffset: rapid.Int64Min(0).Draw(t, "source offset"),
			EverKnown: rapid.Bool().Draw(t, "known")}
		for range rapid.IntRange(0, 6).Draw(t, "targets") {
			s.EverTargets = append(s.EverTargets, Target{rapid.SampledFrom([]TargetKind{KindProject, KindPropertyObject}).Draw(t, "kind"), genUUID().Draw(t, "id")})
		}
		slices.SortFunc(s.EverTargets, CompareTargets)
		s.EverTargets = slices.Compact(s.EverTargets)
		for _, e := range s.EverTargets {
			if rapid.Bool().Draw(t, "current") {
				s.Targets = append(s.Targets, e)
			}
		}
		for range rapid.IntRange(0, 4).Draw(t, "messages") {
			s.MessageIDs = append(s.MessageIDs, MessageRef{genUUID().Draw(t, "message"), rapid.Int64Min(0).Draw(t, "of version")})
		}
		slices.SortStableFunc(s.MessageIDs, func(a, b MessageRef) int { return cmp.Compare(a.Version, b.Version) })
		return s
	})
}

func TestMarkRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := genMark().Draw(t, "mark")
		data, err := want.MarshalBinary()
		require.NoError(t, err)
		require.LessOrEqual(t, len(data), MaxMarkSize)
		got, err := DecodeMark(data)
		require.NoError(t, err)
		require.Equal(t, want, got)
		requireStrict(t, data, func(b []byte) error { _, err := DecodeMark(b); return err })
	})
}

func TestMarkIsCutToSecondsAndItsRange(t *testing.T) {
	for at, want := range map[time.Time]int64{time.Unix(5, 999): 5, time.Unix(-5, 0): 0, {}: 0, time.Unix(1<<40, 0): 1<<32 - 1} {
		data, err := Mark{At: at}.MarshalBinary()
		require.NoError(t, err)
		got, err := DecodeMark(data)
		require.NoError(t, err)
		require.Equal(t, want, got.At.Unix())
	}
	_, err := Mark{Origin: Origin{Offset: -1}}.MarshalBinary()
	require.Error(t, err)
	_, err = Mark{Origin: Origin{Partition: -1}}.MarshalBinary()
	require.Error(t, err)
	typical, err := Mark{Origin: Origin{Partition: 5, Offset: 1_000_000_000}, At: testNow}.MarshalBinary()
	require.NoError(t, err)
	require.Len(t, typical, 31, "the size that the docs state")
}

// requireStrict checks that no other bytes near a sound value are taken for one.
func requireStrict(t *rapid.T, data []byte, decode func([]byte) error) {
	require.Error(t, decode(append(slices.Clone(data), 0)), "trailing byte")
	cut := rapid.IntRange(0, len(data)-1).Draw(t, "cut")
	require.Error(t, decode(data[:cut]), "cut at %d", cut)
	foreign := slices.Clone(data)
	foreign[0] += 7
	require.ErrorContains(t, decode(foreign), "format")
}

func TestRecordRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := genRecord().Draw(t, "record")
		data := EncodeRecord(want)
		got, err := DecodeRecord(data)
		require.NoError(t, err)
		require.Equal(t, want, got, "nulls stay nulls, empties stay empty")
		requireStrict(t, data, func(b []byte) error { _, err := DecodeRecord(b); return err })
	})
}

func TestPurchaseStateRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := genState().Draw(t, "state")
		data, err := want.MarshalBinary()
		require.NoError(t, err)
		got, err := DecodePurchaseState(data)
		require.NoError(t, err)
		require.Equal(t, want, got)
		requireStrict(t, data, func(b []byte) error { _, err := DecodePurchaseState(b); return err })
	})
}

func TestLargestPurchaseStateStaysBelowTheLimit(t *testing.T) {
	s := &PurchaseState{Origin: Origin{Partition: 1<<31 - 1, Offset: 1<<63 - 1}, Version: 1<<63 - 1, Revision: 1<<63 - 1, Status: StatusActive,
		BoostWeight: 100, EndsAt: testNow, Topic: strings.Repeat("t", maxTopicLen), SourcePartition: 1<<31 - 1, SourceOffset: 1<<63 - 1, EverKnown: true}
	for i := range MaxTargets {
		id := uuid.UUID{byte(i >> 16), byte(i >> 8), byte(i)}
		s.EverTargets = append(s.EverTargets, Target{KindPropertyObject, id})
	}
	s.Targets = s.EverTargets
	for i := range MaxMessageIDs {
		s.MessageIDs = append(s.MessageIDs, MessageRef{uuid.UUID{byte(i)}, 1<<63 - 1})
	}
	data, err := s.MarshalBinary()
	require.NoError(t, err)
	require.Less(t, len(data), MaxPurchaseStateSize)
	got, err := DecodePurchaseState(data)
	require.NoError(t, err)
	require.Equal(t, s, got)
}

func TestPurchaseStateRefusesWhatDecideDoesNotMake(t *testing.T) {
	a, b := Target{KindProject, uuid.UUID{1}}, Target{KindProject, uuid.UUID{2}}
	for name, change := range map[string]func(*PurchaseState){
		"status":          func(s *PurchaseState) { s.Status = "Foo" },
		"no status":       func(s *PurchaseState) { s.Status = "" },
		"kind":            func(s *PurchaseState) { s.EverTargets = []Target{{"Post", uuid.UUID{1}}} },
		"order":           func(s *PurchaseState) { s.EverTargets = []Target{b, a} },
		"twice":           func(s *PurchaseState) { s.EverTargets = []Target{a, a} },
		"not ever":        func(s *PurchaseState) { s.Targets = []Target{a} },
		"targets twice":   func(s *PurchaseState) { s.EverTargets, s.Targets = []Target{a, b}, []Target{a, a} },
		"targets order":   func(s *PurchaseState) { s.EverTargets, s.Targets = []Target{a, b}, []Target{b, a} },
		"offset":          func(s *PurchaseState) { s.Offset = -1 },
		"partition":       func(s *PurchaseState) { s.SourcePartition = -1 },
		"version":         func(s *PurchaseState) { s.Version = -1 },
		"year":            func(s *PurchaseState) { s.EndsAt = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) },
		"topic":           func(s *PurchaseState) { s.Topic = strings.Repeat("t", 250) },
		"message order":   func(s *PurchaseState) { s.MessageIDs = []MessageRef{{uuid.UUID{1}, 2}, {uuid.UUID{2}, 1}} },
		"message count":   func(s *PurchaseState) { s.MessageIDs = make([]MessageRef, MaxMessageIDs+1) },
		"targets, number": func(s *PurchaseState) { s.EverTargets = make([]Target, MaxTargets+1) },
	} {
		s := &PurchaseState{Status: StatusActive, EndsAt: testNow}
		_, err := s.MarshalBinary()
		require.NoError(t, err)
		change(s)
		_, err = s.MarshalBinary()
		require.ErrorContains(t, err, "encoding a purchase state", name)
	}
}

// What no encoder writes is refused: each value has one encoding.
func TestStoredFormsAreStrict(t *testing.T) {
	mark, err := Mark{Origin: Origin{Partition: 5, Offset: 7}}.MarshalBinary()
	require.NoError(t, err)
	state, err := (&PurchaseState{Status: StatusActive, EndsAt: testNow, EverTargets: []Target{{KindProject, uuid.UUID{1}}}}).MarshalBinary()
	require.NoError(t, err)
	raw := EncodeRecord(&record.Record{ID: record.ID{Topic: "t"}})
	change := func(data []byte, at int, to ...byte) []byte {
		return append(append(slices.Clone(data[:at]), to...), data[at+1:]...)
	}
	for name, err := range map[string]error{
		"mark, long form of 7":      second(DecodeMark(change(mark, len(mark)-1, 0x87, 0x00))),
		"mark, offset over 63 bits": second(DecodeMark(change(mark, len(mark)-1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01))),
		"mark, partition over 31":   second(DecodeMark(change(mark, len(mark)-2, 0x80, 0x80, 0x80, 0x80, 0x08))),
		"state, unknown flag":       second(DecodePurchaseState(change(state, 1, 0x04))),
		"state, unknown status":     second(DecodePurchaseState(change(state, 10, 0x04))),
		"state, unknown kind":       second(DecodePurchaseState(change(state, len(state)-18, 0x04))),
		"state, too many messages":  second(DecodePurchaseState(change(state, len(state)-1, 0xff, 0xff, 0x7f))),
		"record, unknown flag":      second(DecodeRecord(change(raw, 1, 0x0f))),
		"record, too many headers":  second(DecodeRecord(change(raw, len(raw)-1, 0xff, 0xff, 0x7f))),
		"nothing":                   second(DecodeRecord(nil)),
	} {
		require.ErrorIs(t, err, errDamaged, name)
	}
}

func second[T any](_ T, err error) error { return err }

// The stored forms are read by later versions: they never change unnoticed.
func TestStoredFormsAreGolden(t *testing.T) {
	id := uuid.MustParse(objectGUID)
	origin := Origin{Incarnation: 0xdeadbeef, Loop: true, Partition: 5, Offset: 300}
	mark, err := Mark{Origin: origin, ObjectID: id, At: testNow}.MarshalBinary()
	require.NoError(t, err)
	a, b := Target{KindProject, uuid.MustParse(projectGUID)}, Target{KindPropertyObject, id}
	state, err := (&PurchaseState{Origin: origin, Version: 3, Revision: 1, Status: StatusCancelled, BoostWeight: 50, EndsAt: testNow.Add(5), Targets: []Target{b},
		EverTargets: []Target{a, b}, Topic: "pin.promotion.purchase-changed.v1", SourcePartition: 2, SourceOffset: 1000,
		MessageIDs: []MessageRef{{uuid.MustParse(eventGUID), 3}}, EverKnown: true}).MarshalBinary()
	require.NoError(t, err)
	raw := EncodeRecord(&record.Record{ID: record.ID{Topic: "t", Partition: 1, Offset: 2}, Value: []byte(`{"a":1}`), Timestamp: time.UnixMilli(1764486930123),
		Headers: []record.Header{{Key: "h", Value: nil}, {Key: "h", Value: []byte{}}, {Key: "H", Value: []byte("v")}}})

	for name, data := range map[string][]byte{"mark": mark, "purchase-state": state, "record": raw} {
		path := filepath.Join("testdata", "stored", name+".v1.hex")
		if os.Getenv("UPDATE_GOLDEN") != "" {
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
			require.NoError(t, os.WriteFile(path, []byte(hex.EncodeToString(data)+"\n"), 0o644))
		}
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		want, err := hex.DecodeString(string(bytes.TrimSpace(text)))
		require.NoError(t, err)
		require.Equal(t, want, data, name)
	}
}

func TestBytesCodec(t *testing.T) {
	for _, data := range [][]byte{nil, {}, {0xff, 0x00}} {
		v, err := Bytes{}.Decode(data)
		require.NoError(t, err)
		require.Equal(t, data, v)
		out, err := Bytes{}.Encode(v)
		require.NoError(t, err)
		require.Equal(t, data, out)
	}
	_, err := Bytes{}.Encode("text")
	require.EqualError(t, err, "codecs.Bytes encodes []byte only, got string")
}
