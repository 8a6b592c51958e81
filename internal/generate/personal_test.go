package generate_test

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/internal/config"
	"github.com/pin-marketplace/vitrina/internal/generate"
)

// A test that searches an output for personal values is worth nothing if one of them does not look like it.
func TestEveryPersonalValueIsFound(t *testing.T) {
	field := regexp.MustCompile(`(?i)"(UserId|AnonymousId|SessionId)":("[^"]*"?|[0-9]+)`)
	personal := generate.PersonalValues()
	o := small()
	o.Bare, o.Malformed = 0.5, 3
	_, items := play(o)
	found := map[string]int{}
	for _, item := range items {
		if item.Record == nil || item.Record.Topic != config.TopicViewEnded {
			continue
		}
		for _, m := range field.FindAllStringSubmatch(string(item.Record.Value), -1) {
			name, value := strings.ToLower(m[1]), m[2]
			if id := strings.Trim(value, `"`); id == "not-a-guid" || id == uuid.Nil.String() {
				continue
			}
			require.Regexp(t, personal, value)
			found[name]++
		}
		for _, h := range item.Record.Headers {
			require.NotRegexp(t, personal, string(h.Value))
		}
		require.NotRegexp(t, personal, string(item.Record.Key))
	}
	for _, name := range []string{"userid", "anonymousid", "sessionid"} {
		require.Greater(t, found[name], 500, name)
	}
}

func TestPersonalValuesAreFoundInEveryForm(t *testing.T) {
	personal := generate.PersonalValues()
	id := generate.NewPersonalID()
	text := id.String()
	forms := map[string]string{
		"as it is": text, "upper case": strings.ToUpper(text), "without hyphens": strings.ReplaceAll(text, "-", ""),
		"hex of the text": hex.EncodeToString([]byte(text)), "bytea": `\x` + hex.EncodeToString([]byte(`{"UserId":"`+text+`"}`)),
		"bytes of the text": fmt.Sprint([]byte(text)), "bytes of the id": fmt.Sprint([16]byte(id)), "hex of the id": hex.EncodeToString(id[:]),
	}
	for shift := range 3 {
		quoted, err := json.Marshal([]byte(strings.Repeat("x", shift) + text))
		require.NoError(t, err)
		forms[fmt.Sprintf("base64 behind %d bytes", shift)] = string(quoted)
		forms[fmt.Sprintf("base64 for URLs behind %d bytes", shift)] = base64.RawURLEncoding.EncodeToString([]byte(strings.Repeat("x", shift) + text))
	}
	for name, form := range forms {
		require.Regexp(t, personal, form, name)
	}
	for range 1000 {
		require.NotRegexp(t, personal, uuid.NewString())
	}
}
