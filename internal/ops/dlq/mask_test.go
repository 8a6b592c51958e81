package dlq

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pin-marketplace/vitrina/codecs"
)

// A letter of some MiB of opening brackets ended the process that listed it: a stack overflow cannot be recovered from. One of many or long
// personal values kept it busy for hours.
func TestDeepNestingIsMaskedAsText(t *testing.T) {
	const person = "0197c0de-7f00-7a51-9c1e-2f6f5d1b8a01"
	nested := func(opening, closing string, levels int) string {
		return `{"UserId":"` + person + `","Deep":` + strings.Repeat(opening, levels) + "1" + strings.Repeat(closing, levels) + `}`
	}
	people := make([]string, 1<<15)
	for i := range people {
		people[i] = fmt.Sprintf(`{"UserId":"another-%d"}`, i)
	}
	people[len(people)-1] = `{"UserId":"` + person + `"}`
	for name, tc := range map[string]struct {
		value string
		sound bool
	}{
		"as deep as the consumers read": {nested("[", "]", codecs.MaxDepth-1), true},
		"a level deeper":                {nested("[", "]", codecs.MaxDepth), false},
		"objects a level deeper":        {nested(`{"SessionId":`, "}", codecs.MaxDepth), false},
		"nothing but brackets":          {strings.Repeat("[", 1<<20), false},
		"nothing but objects":           {strings.Repeat(`{"UserId":`, 1<<17), false},
		"many people":                   {strings.Join(people, " "), false},
	} {
		t.Run(name, func(t *testing.T) {
			m := masker([]byte(tc.value))
			require.Equal(t, tc.sound, m.tree != nil)
			shown := m.payload()
			require.Equal(t, tc.sound, !strings.Contains(shown, "no sound JSON"))
			require.NotContains(t, shown, person)
			if strings.Contains(tc.value, person) {
				require.NotContains(t, m.text("it says "+person), person[:20], "masked in the reason, too")
			}
		})
	}
}
