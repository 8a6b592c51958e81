package codecs

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// genJSON writes random JSON with random space; names favour those of the price payload.
func genJSON(depth int) *rapid.Generator[string] {
	space := rapid.SampledFrom([]string{"", "", "", " ", "\n\t\r "})
	text := rapid.OneOf(
		rapid.StringMatching(`"[ -!#-\[\]-~]{0,20}"`),
		rapid.StringMatching(`"([a-zа-я]{0,9}|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4}|\\ud83d\\ude00|😀){0,6}"`),
		rapid.SampledFrom([]string{`"AreaTotal"`, `"areaTotal"`, `"Payload"`, `"\u0050ayload"`, `"NewPrice"`, `"Version"`, `"\u0056ersion"`}),
	)
	number := rapid.StringMatching(`-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,9})?([eE][+-]?[0-9]{1,3})?`)
	word := rapid.SampledFrom([]string{"true", "false", "null"})
	return rapid.Custom(func(t *rapid.T) string {
		kinds := 4
		if depth > 0 {
			kinds = 8
		}
		pad := func(s string) string { return space.Draw(t, "space") + s + space.Draw(t, "space") }
		switch rapid.IntRange(0, kinds).Draw(t, "kind") {
		case 0, 1:
			return pad(text.Draw(t, "text"))
		case 2, 3:
			return pad(number.Draw(t, "number"))
		case 4:
			return pad(word.Draw(t, "word"))
		case 5, 6:
			var members []string
			for range rapid.IntRange(0, 4).Draw(t, "members") {
				members = append(members, pad(text.Draw(t, "name"))+":"+genJSON(depth-1).Draw(t, "value"))
			}
			return pad("{" + pad(strings.Join(members, ",")) + "}")
		default:
			return pad("[" + pad(strings.Join(rapid.SliceOfN(genJSON(depth-1), 0, 4).Draw(t, "elements"), ",")) + "]")
		}
	})
}

// Random texts, sound and broken by one byte: the scanner agrees with encoding/json about each.
func TestScannerAgainstStandardLibrary(t *testing.T) {
	sound, broken := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		members := rapid.SliceOfN(genJSON(3), 1, 5).Draw(t, "values")
		var b strings.Builder
		for i, value := range members {
			if i > 0 {
				b.WriteByte(',')
			}
			name := rapid.SampledFrom(append([]string{"Payload", "x"}, allPriceNames()...)).Draw(t, "field")
			fmt.Fprintf(&b, "%q:%s", name, value)
		}
		text := []byte("{" + b.String() + "}")
		for range rapid.IntRange(0, 1).Draw(t, "break") {
			at := rapid.IntRange(0, len(text)-1).Draw(t, "at")
			switch rapid.IntRange(0, 2).Draw(t, "how") {
			case 0:
				text[at] = rapid.SampledFrom([]byte("{}[]\",:\\0-+.eEtn \x00\x1f\x7f\x80ux")).Draw(t, "byte")
			case 1:
				text = append(text[:at:at], text[at+1:]...)
			case 2:
				text = text[:at]
			}
		}
		checkScan(t, text)
		if json.Valid(text) {
			sound++
		} else {
			broken++
		}
	})
	require.True(t, sound > 10 && broken > 10, "%d sound, %d broken", sound, broken)
}

// The eight bytes at a time of the string scanner find what one byte at a time finds, wherever it lies.
func TestStringEndsAtEachOffset(t *testing.T) {
	for length := range 40 {
		for _, special := range []string{`"`, `\"`, "\x00", "\x1f", "\x7f", "\x80", "\xd1", "я", `\u0041`, "!", "#", "[", "]"} {
			for at := range length + 1 {
				inside := strings.Repeat("a", at) + special + strings.Repeat("b", length-at)
				for _, tail := range []string{`"`, `"}`, ""} {
					checkScan(t, []byte(`{"Source":"`+inside+tail))
				}
			}
		}
	}
}
