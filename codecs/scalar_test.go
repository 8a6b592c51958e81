package codecs

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestGUIDForms(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var want uuid.UUID
		copy(want[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id"))
		text := []byte(want.String())
		for i := range text {
			if rapid.Bool().Draw(t, "upper") {
				text[i] = strings.ToUpper(string(text[i]))[0]
			}
		}
		if rapid.Bool().Draw(t, "braces") {
			text = []byte("{" + string(text) + "}")
		}
		got, ok := parseGUID(text)
		require.True(t, ok, "%s", text)
		require.Equal(t, want, got)

		at := rapid.IntRange(0, len(text)-1).Draw(t, "at")
		broken := append([]byte(nil), text...)
		broken[at] = rapid.SampledFrom([]byte("gG-{} \x00x:")).Draw(t, "byte")
		if broken[at] != text[at] {
			_, ok = parseGUID(broken)
			require.False(t, ok, "%s", broken)
		}
		_, ok = parseGUID(text[:at])
		require.False(t, ok)
	})
}

// Each byte at each place of a Guid, judged digit by digit.
func TestGUIDBytes(t *testing.T) {
	for _, text := range []string{eventGUID, strings.ToUpper(eventGUID), "00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-FFFF-FFFFFFFFFFFF"} {
		for at := range text {
			for c := range 256 {
				b := []byte(text)
				b[at] = byte(c)
				var want uuid.UUID
				n, err := hex.Decode(want[:], bytes.ReplaceAll(b, []byte("-"), nil))
				sound := err == nil && n == 16 && (text[at] == '-') == (c == '-')
				got, ok := parseGUID(b)
				require.Equal(t, sound, ok, "%q", b)
				if ok {
					require.Equal(t, want, got, "%q", b)
				}
			}
		}
	}
}

func TestIntegerAgainstStrconv(t *testing.T) {
	check := func(text string) {
		want, err := strconv.ParseInt(text, 10, 64)
		got, state := parseInteger([]byte(text))
		if err != nil {
			require.Equal(t, outOfRange, state, text)
			return
		}
		require.Equal(t, fits, state, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"0", "-0", "1", "-1", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809",
		"9999999999999999999", "18446744073709551616", "-18446744073709551616"} {
		check(text)
	}
	rapid.Check(t, func(t *rapid.T) {
		check(strconv.FormatInt(rapid.Int64().Draw(t, "n"), 10))
		check(rapid.StringMatching(`-?[1-9][0-9]{0,25}`).Draw(t, "text"))
	})
	for _, text := range []string{"", "-", "+1", "01", "-01", "1.0", "1e0", " 1", "1 ", "0x1", "1_0"} {
		_, state := parseInteger([]byte(text))
		require.Equal(t, malformed, state, text)
	}
}

func TestTimeForms(t *testing.T) {
	for text, want := range map[string]string{
		"2026-11-30T10:15:30Z":                "2026-11-30T10:15:30Z",
		"2026-11-30t10:15:30z":                "2026-11-30T10:15:30Z",
		"2026-11-30T10:15:30+03:00":           "2026-11-30T07:15:30Z",
		"2026-11-30T10:15:30-00:00":           "2026-11-30T10:15:30Z",
		"2026-11-30T10:15:30.1+14:00":         "2026-11-29T20:15:30.1Z",
		"2026-11-30T10:15:30.12-14:00":        "2026-12-01T00:15:30.12Z",
		"2026-11-30T10:15:30.1234567+05:45":   "2026-11-30T04:30:30.1234567Z",
		"2026-11-30T10:15:30.123456789+03:00": "2026-11-30T07:15:30.123456789Z",
		"2026-11-30T10:15:30.000000001-23:59": "2026-12-01T10:14:30.000000001Z",
		"2024-02-29T00:00:00Z":                "2024-02-29T00:00:00Z",
		"2000-02-29T00:00:00Z":                "2000-02-29T00:00:00Z",
		"2016-12-31T23:59:60Z":                "2017-01-01T00:00:00Z", // a leap second is the first second after it
		"2016-12-31T15:59:60.5-08:00":         "2017-01-01T00:00:00.5Z",
		"2017-01-01T02:59:60+03:00":           "2017-01-01T00:00:00Z",
		"0001-01-01T00:00:00Z":                "0001-01-01T00:00:00Z",
		"9999-12-31T23:59:59.999999999Z":      "9999-12-31T23:59:59.999999999Z",
	} {
		got, _, state := parseTime([]byte(text))
		require.Equal(t, fits, state, text)
		require.Equal(t, want, got.Format(time.RFC3339Nano), text)
		require.Equal(t, time.UTC, got.Location())
	}
	for _, text := range []string{"1900-02-29T00:00:00Z", "2016-12-31T23:58:60Z", "2016-12-30T23:59:60Z", "2016-12-31T23:59:60+03:00", "2016-12-31T23:59:61Z"} {
		_, _, state := parseTime([]byte(text))
		require.Equal(t, malformed, state, text)
	}
}

// The first and the last days of every month there is, and the days around them that are none.
func TestEachMonth(t *testing.T) {
	for year := range 10_000 {
		for month := range 14 {
			for _, day := range []int{0, 1, 28, 29, 30, 31, 32} {
				text := fmt.Sprintf("%04d-%02d-%02dT23:59:59Z", year, month, day)
				want := time.Date(year, time.Month(month), day, 23, 59, 59, 0, time.UTC)
				got, _, state := parseTime([]byte(text))
				switch {
				case want.Day() != day || want.Month() != time.Month(month):
					require.Equal(t, malformed, state, text)
				case year == 0:
					require.Equal(t, outOfRange, state, text)
				case state != fits || got != want: // require for each would take seconds
					require.Equal(t, want, got, text)
				}
			}
		}
	}
}

func TestTimeAgainstStandardLibrary(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seconds := rapid.Int64Range(-62135596800, 253402300799).Draw(t, "seconds")
		nanos := rapid.Int64Range(0, 999_999_999).Draw(t, "nanos")
		offset := rapid.IntRange(-14*60, 14*60).Draw(t, "offset") * 60
		want := time.Unix(seconds, nanos).UTC()
		local := want.In(time.FixedZone("", offset))
		if local.Year() < 1 || local.Year() > 9999 {
			return
		}
		text := local.Format("2006-01-02T15:04:05.000000000-07:00")
		got, east, state := parseTime([]byte(text))
		require.Equal(t, fits, state, text)
		require.True(t, want.Equal(got), text)
		require.Equal(t, offset, east)
	})
	// what is accepted, the standard library reads alike
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[0-9]{4}-[0-3][0-9]-[0-3][0-9]T[0-2][0-9]:[0-6][0-9]:[0-6][0-9](\.[0-9]{1,10})?(Z|[+-][0-2][0-9]:[0-6][0-9])?`).Draw(t, "text")
		got, _, state := parseTime([]byte(text))
		want, err := time.Parse(time.RFC3339Nano, text)
		if state == fits && text[17:19] != "60" {
			require.NoError(t, err, text)
			require.True(t, want.Equal(got), text)
		}
		if err == nil && state == malformed { // it is laxer about fractional digits and offsets only
			require.Regexp(t, `\.[0-9]{10}|[+-]24:|:60$`, text)
		}
	})
}

func TestDecimalAgainstRationals(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,2})?`).Draw(t, "text")
		want, ok := new(big.Rat).SetString(text)
		require.True(t, ok)
		got, state := parseDecimal([]byte(text))
		if state == outOfRange {
			require.Positive(t, new(big.Rat).Abs(want).Cmp(big.NewRat(math.MaxInt64, 1)), text)
			return
		}
		require.Equal(t, fits, state, text)
		if got.IsZero() {
			require.Negative(t, new(big.Rat).Abs(want).Cmp(big.NewRat(1, math.MaxInt64)), text)
			return
		}
		require.Zero(t, got.Rat().Cmp(want), "%s != %s", text, got)
	})
}

func TestDecimalBounds(t *testing.T) {
	for text, want := range map[string]fit{
		"1e30": outOfRange, "1e29": fits, "0.1e30": fits, "1e999999999": outOfRange, "-1e99999999999999999999999": outOfRange,
		"0e999999999999": fits, "0.000e-5": fits, "1e-999999999": fits, "-1e-99999999999999999999999": fits,
		"1" + strings.Repeat("0", 29):                    fits,
		strings.Repeat("9", 31):                          outOfRange,
		"0." + strings.Repeat("0", 100_000) + "1":        fits,
		"0." + strings.Repeat("0", 100_000) + "1e100005": fits, // 10000
		"1" + strings.Repeat("0", 100_000) + "e-100000":  fits, // 1
		"1." + strings.Repeat("0", 100_000):              fits,
		"1." + strings.Repeat("1", 999):                  fits,
		"1." + strings.Repeat("1", 1000):                 outOfRange,
		strings.Repeat("0", 1):                           fits,
		"1e+05":                                          fits,
		"":                                               malformed,
		"e5":                                             malformed,
		fmt.Sprintf("0.%s1e%d", strings.Repeat("0", 100_000), 100_001+maxDecimalPlaces): outOfRange,
	} {
		d, state := parseDecimal([]byte(text))
		require.Equal(t, want, state, shorten(text, 60))
		require.LessOrEqual(t, d.NumDigits(), maxDecimalDigits)
	}
	d, _ := parseDecimal([]byte("0." + strings.Repeat("0", 100_000) + "1e100005"))
	require.Equal(t, "10000", d.String())
	d, _ = parseDecimal([]byte("1" + strings.Repeat("0", 100_000) + "e-100000"))
	require.Equal(t, "1", d.String())
}
