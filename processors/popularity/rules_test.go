package popularity

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pin-marketplace/vitrina/codecs"
)

var (
	now    = time.Date(2026, 11, 30, 10, 0, 0, 999, time.FixedZone("", 3*3600))
	object = uuid.UUID{1}
	source = codecs.Origin{Incarnation: 7, Partition: 3, Offset: 100}
)

func TestMarkOfAView(t *testing.T) {
	made := &codecs.Mark{Origin: source, ObjectID: object, At: now.Add(-time.Hour).UTC().Truncate(time.Second)}
	other := func(change func(*codecs.Origin)) codecs.Origin {
		o := source
		change(&o)
		return o
	}
	for name, tt := range map[string]struct {
		mark   *codecs.Mark
		origin codecs.Origin
		want   Decision
	}{
		"first record": {nil, source, Decision{codecs.MarkNone, now.UTC().Truncate(time.Second),
			codecs.Mark{Origin: source, ObjectID: object, At: now.UTC().Truncate(time.Second)}}},
		"same record":                {made, source, Decision{codecs.MarkOwn, made.At, *made}},
		"other offset":               {made, other(func(o *codecs.Origin) { o.Offset++ }), Decision{codecs.MarkForeign, made.At, *made}},
		"other partition":            {made, other(func(o *codecs.Origin) { o.Partition++ }), Decision{codecs.MarkForeign, made.At, *made}},
		"loop topic, same numbers":   {made, other(func(o *codecs.Origin) { o.Loop = true }), Decision{codecs.MarkForeign, made.At, *made}},
		"loop topic, its own id":     {made, other(func(o *codecs.Origin) { o.Loop, o.Incarnation = true, 9 }), Decision{codecs.MarkForeign, made.At, *made}},
		"topic made anew, same":      {made, other(func(o *codecs.Origin) { o.Incarnation++ }), Decision{codecs.MarkEarlier, made.At, *made}},
		"topic made anew, elsewhere": {made, other(func(o *codecs.Origin) { o.Incarnation, o.Offset = 1, 5 }), Decision{codecs.MarkEarlier, made.At, *made}},
	} {
		require.Equal(t, tt.want, Decide(tt.mark, &codecs.View{ObjectID: object}, tt.origin, now), name)
	}
}

// Whatever comes, in whatever order, through the stored form: the first record's mark stays, each later record is classified by how it
// relates to that one, and only the first and its redeliveries write.
func TestMarksAgainstTheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var (
			table   []byte
			first   *codecs.Origin
			firstAt time.Time
			clock   = now
		)
		for range rapid.IntRange(1, 12).Draw(t, "deliveries") {
			origin := codecs.Origin{Incarnation: rapid.Uint32Range(1, 2).Draw(t, "incarnation"), Loop: rapid.Bool().Draw(t, "loop"),
				Partition: rapid.Int32Range(0, 1).Draw(t, "partition"), Offset: rapid.Int64Range(0, 2).Draw(t, "offset")}
			clock = clock.Add(time.Duration(rapid.IntRange(0, 5000).Draw(t, "ms")) * time.Millisecond)

			var mark *codecs.Mark
			if table != nil {
				m, err := codecs.DecodeMark(table)
				require.NoError(t, err)
				mark = &m
			}
			d := Decide(mark, &codecs.View{ObjectID: object}, origin, clock)

			want := codecs.MarkForeign
			switch {
			case first == nil:
				want, first, firstAt = codecs.MarkNone, &origin, clock.UTC().Truncate(time.Second)
			case *first == origin:
				want = codecs.MarkOwn
			case first.Loop == origin.Loop && first.Incarnation != origin.Incarnation:
				want = codecs.MarkEarlier
			}
			require.Equal(t, want, d.Kind, "%s", d.Kind)
			require.True(t, firstAt.Equal(d.MarkAt))
			data, err := d.Write.MarshalBinary() // every record makes sure that the mark is in the changelog
			require.NoError(t, err)
			if table != nil {
				require.Equal(t, table, data, "the same state again")
			}
			table = data
		}
	})
}
