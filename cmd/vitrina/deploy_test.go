package main

import (
	"errors"
	"io"
	"os"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// The command lines in deploy/ are ones that this program understands.
func TestDeploymentsCallCommandsThatExist(t *testing.T) {
	lines := 0
	for path, key := range map[string]string{
		"../../deploy/compose/compose.yaml": "command", "../../deploy/kubernetes/setup-job.yaml": "args", "../../deploy/kubernetes/statefulset.yaml": "args",
	} {
		f, err := os.Open(path)
		require.NoError(t, err)
		decoder := yaml.NewDecoder(f)
		for {
			var document any
			err := decoder.Decode(&document)
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err)
			eachCommand(document, key, func(args []string) {
				parser, err := kong.New(&commands{}, kong.Exit(func(int) {}))
				require.NoError(t, err)
				_, err = parser.Parse(args)
				require.NoError(t, err, "%s: %v", path, args)
				lines++
			})
		}
		require.NoError(t, f.Close())
	}
	require.GreaterOrEqual(t, lines, 6)
}

// eachCommand finds the argument lists of containers of this program's image.
func eachCommand(node any, key string, found func([]string)) {
	switch v := node.(type) {
	case map[string]any:
		if list, ok := v[key].([]any); ok && v["image"] == "vitrina" {
			args := make([]string, len(list))
			for i, a := range list {
				args[i], _ = a.(string)
			}
			found(args)
		}
		for _, child := range v {
			eachCommand(child, key, found)
		}
	case []any:
		for _, child := range v {
			eachCommand(child, key, found)
		}
	}
}
