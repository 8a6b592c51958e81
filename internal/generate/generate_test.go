package generate_test

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/generate"
	"github.com/pin-marketplace/vitrina/internal/record"
	"github.com/pin-marketplace/vitrina/test/model"
)

var start = time.Date(2026, 11, 30, 9, 0, 0, 0, time.UTC)

func small() generate.Options {
	o := generate.Defaults()
	o.Start, o.Objects, o.Views, o.Purchases, o.Prices, o.Malformed = start, 300, 3000, 600, 800, 1
	o.WrongKeys = 0.02
	return o
}

func play(o generate.Options) (*model.Expected, []generate.Item) {
	m := model.New(o.Start.Add(o.Span))
	var items []generate.Item
	for item := range generate.Items(o) {
		item.Give(m)
		items = append(items, item)
	}
	return m.Expected(), items
}

func TestSameOptionsSameStream(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := small()
		o.Seed = rapid.Uint64().Draw(t, "seed")
		o.Projects, o.Objects, o.Views, o.Purchases, o.Prices = 5, 40, rapid.IntRange(0, 60).Draw(t, "views"), rapid.IntRange(0, 60).Draw(t, "purchases"), rapid.IntRange(0, 60).Draw(t, "prices")
		o.Malformed = rapid.IntRange(0, 1).Draw(t, "malformed")
		o.Duplicates = rapid.Float64Range(0, 1).Draw(t, "duplicates")
		o.Reordered = rapid.Float64Range(0, 1).Draw(t, "reordered")
		require.NoError(t, o.Validate())
		expected, items := play(o)
		require.Equal(t, items, slices.Collect(generate.Items(o)))
		// Whatever the options, nothing but the malformed records is dead-lettered.
		broken := 0
		for _, item := range items {
			if item.Malformed != "" {
				broken++
			}
		}
		require.Len(t, expected.DeadLetters, broken)
	})
}

func TestStreamHoldsWhatWasAskedFor(t *testing.T) {
	o := small()
	expected, items := play(o)
	require.Len(t, expected.Cards, o.Projects+o.Objects)
	require.Len(t, expected.Views, o.Views)
	require.InDelta(t, o.Records(), expected.Records[config.TopicViewEnded]+expected.Records[config.TopicPurchaseChanged]+expected.Records[config.TopicPriceChanged], 150)

	seen := map[string]bool{}
	var repeated, late, bare, wrongKey, traced, hiddenBoost int
	records := false
	for _, item := range items {
		if item.Card != nil {
			if records {
				late++
			}
			continue
		}
		records = true
		rec := item.Record
		require.False(t, item.At.Before(start) || item.At.After(start.Add(o.Span)))
		if item.Malformed != "" {
			continue
		}
		if seen[string(rec.Value)] {
			repeated++
		}
		seen[string(rec.Value)] = true
		if !bytes.Contains(rec.Value, []byte(`"Payload":`)) && !bytes.Contains(rec.Value, []byte(`"payload":`)) {
			bare++
		}
		if _, ok := rec.Header("traceparent"); ok {
			traced++
		}
		if rec.Topic != config.TopicPriceChanged && !bytes.Contains(rec.Value, append([]byte(`"`), rec.Key...)) {
			wrongKey++
		}
	}
	for _, card := range expected.Cards {
		if card.PromotionBoost > 0 {
			hiddenBoost++
		}
	}
	require.Positive(t, late)
	require.Positive(t, bare)
	require.Positive(t, wrongKey)
	require.Positive(t, traced)
	require.Greater(t, hiddenBoost, 50)
	require.InDelta(t, 220, repeated, 60)
	require.Positive(t, expected.Mismatches[config.TopicViewEnded])

	statuses := map[string]int{}
	for _, p := range expected.Purchases {
		statuses[p.Status]++
	}
	for _, status := range []string{"Active", "Expired", "Cancelled"} {
		require.Positive(t, statuses[status], status)
	}
}

func TestPopularityIsSkewed(t *testing.T) {
	o := small()
	expected, _ := play(o)
	top, total := int64(0), int64(0)
	for ref, card := range expected.Cards {
		if ref.Kind == model.PropertyObject {
			top, total = max(top, card.PopularityViews), total+card.PopularityViews
		}
	}
	require.Greater(t, top*int64(o.Objects), total*10, "the favourite has more than ten times its share")
}

// The name of a fault says what the model must think of it; so neither can be wrong alone.
func TestEveryMalformedKindIsWhatItSays(t *testing.T) {
	o := small()
	o.Duplicates, o.Bare = 0, 0.5
	o.Views, o.Purchases, o.Prices, o.Malformed = 0, 0, 0, 4
	expected, items := play(o)
	codes := map[string]map[string]string{}
	for topic, kinds := range generate.MalformedKinds() {
		codes[topic] = map[string]string{}
		for _, kind := range kinds {
			require.NotContains(t, codes[topic], kind.Name)
			codes[topic][kind.Name] = kind.Code
		}
	}
	got := map[int]model.DeadLetter{}
	for _, letter := range expected.DeadLetters {
		got[letter.Index] = letter
	}
	index, met := 0, map[string]bool{}
	for _, item := range items {
		if item.Record == nil {
			continue
		}
		letter, ok := got[index]
		require.True(t, ok, "%s: %s was taken for valid: %s", item.Record.Topic, item.Malformed, item.Record.Value)
		require.Equal(t, codes[item.Record.Topic][item.Malformed], letter.Code, "%s: %s: %s", item.Record.Topic, item.Malformed, item.Record.Value)
		if letter.Field != "" && letter.Code != "CONTRACT_UNDECODABLE" && !strings.HasPrefix(item.Malformed, "Targets") && !strings.HasPrefix(item.Malformed, "CurrencySnapshot") {
			require.True(t, strings.HasPrefix(item.Malformed, letter.Field), "%s names %s", item.Malformed, letter.Field)
		}
		met[item.Record.Topic+item.Malformed] = true
		index++
	}
	require.Len(t, met, len(codes[config.TopicViewEnded])+len(codes[config.TopicPurchaseChanged])+len(codes[config.TopicPriceChanged]))
}

func TestMalformedRecordsChangeNothingElse(t *testing.T) {
	o := small()
	with, _ := play(o)
	o.Malformed = 0
	without, _ := play(o)
	require.Equal(t, without.Cards, with.Cards)
	require.Equal(t, without.Facts, with.Facts)
	require.Empty(t, without.DeadLetters)
}

func TestValidatesOptions(t *testing.T) {
	require.NoError(t, small().Validate())
	o := generate.Options{Duplicates: 2, Views: -1, Projects: 5, Objects: 2, Span: -1}
	for _, part := range []string{"duplicates", "views", "projects", "start", "span"} {
		require.ErrorContains(t, o.Validate(), part)
	}
}

func TestFileGivesTheSameItems(t *testing.T) {
	_, items := play(small())
	var file bytes.Buffer
	w := generate.NewFileWriter(&file)
	for _, item := range items {
		require.NoError(t, w.Write(item))
	}
	require.NoError(t, w.Flush())
	for line := range bytes.Lines(file.Bytes()) {
		require.True(t, json.Valid(line))
	}
	var back []generate.Item
	for item, err := range generate.ReadFile(bytes.NewReader(file.Bytes())) {
		require.NoError(t, err)
		back = append(back, item)
	}
	require.Len(t, back, len(items))
	for i := range items {
		if items[i].Record != nil && len(items[i].Record.Headers) == 0 {
			items[i].Record.Headers, back[i].Record.Headers = nil, nil
		}
		require.Equal(t, items[i].Card, back[i].Card)
		require.Equal(t, items[i].Malformed, back[i].Malformed)
		require.True(t, items[i].At.Equal(back[i].At))
		if items[i].Record != nil {
			want, got := *items[i].Record, *back[i].Record
			require.True(t, want.Timestamp.Equal(got.Timestamp))
			got.Timestamp = want.Timestamp
			require.Equal(t, want, got)
		}
	}
	for _, err := range generate.ReadFile(strings.NewReader("{}\nnonsense\n")) {
		if err != nil {
			require.ErrorContains(t, err, "line")
			return
		}
	}
	require.Fail(t, "a damaged file was read")
}

func TestFileKeepsNullEmptyAndBinary(t *testing.T) {
	for _, rec := range []record.Record{
		{}, {Key: []byte{}, Value: []byte{}}, {Key: []byte{0xff}, Value: []byte("\x00\xfe")},
		{Key: []byte("k"), Value: []byte("v"), Headers: []record.Header{{Key: "a"}, {Key: "a", Value: []byte{}}, {Key: "b", Value: []byte{0xff}}}},
	} {
		rec.Topic, rec.Partition, rec.Offset = "t", -1, -1
		var file bytes.Buffer
		w := generate.NewFileWriter(&file)
		require.NoError(t, w.Write(generate.Item{At: start, Record: &rec}))
		require.NoError(t, w.Flush())
		for item, err := range generate.ReadFile(&file) {
			require.NoError(t, err)
			item.Record.Timestamp = rec.Timestamp
			require.Equal(t, rec, *item.Record)
		}
	}
}

// Records of one purchase may lie in several partitions and come in any order: what the cards show must not depend on it.
func TestExpectedCardsDoNotDependOnTheOrder(t *testing.T) {
	o := small()
	o.Objects, o.Views, o.Prices, o.Purchases, o.Malformed = 3000, 100, 0, 4000, 0
	expected, items := play(o)
	for seed := range uint64(3) {
		shuffled := slices.Clone(items)
		rand.New(rand.NewPCG(seed, 1)).Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		m := model.New(o.Start.Add(o.Span))
		for _, item := range shuffled {
			item.Give(m)
		}
		require.Equal(t, expected.Cards, m.Expected().Cards)
	}
}
