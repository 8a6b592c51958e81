package processors

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestKeyIsTheIDAsText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id := uuid.UUID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id"))
		text := []byte(id.String())
		require.True(t, keyIs(text, id))
		at := rapid.IntRange(0, len(text)-1).Draw(t, "at")
		changed := bytes.Clone(text)
		changed[at] ^= byte(rapid.IntRange(1, 255).Draw(t, "change"))
		require.False(t, keyIs(changed, id))
		require.False(t, keyIs(text[:at], id))
		require.False(t, keyIs(append(text, '0'), id))
	})
	id := uuid.MustParse("a9000000-0000-7000-8000-00000000000f")
	require.False(t, keyIs([]byte(strings.ToUpper(id.String())), id), "canonical is lower case")
	require.False(t, keyIs(nil, id))
}
