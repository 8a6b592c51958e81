package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"
)

// Whoever is woken at night copies these lines. What they do is tested where the operations are; here, that each is a command line
// of this program.
func TestEveryCommandOfTheRunbooksIsOne(t *testing.T) {
	lines := regexp.MustCompile("(?m)^ +(vitrina [^\n]+)$|`(vitrina [^`\n…]+)`")
	quoted := regexp.MustCompile(`"[^"]*"|'[^']*'`)
	files, err := filepath.Glob("../../docs/runbooks/*.md")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, match := range lines.FindAllStringSubmatch(string(text), -1) {
			line := match[1] + match[2]
			var cli commands
			parser, err := kong.New(&cli, kong.Name("vitrina"), kong.Exit(func(int) {}))
			require.NoError(t, err)
			_, err = parser.Parse(strings.Fields(quoted.ReplaceAllString(line, "quoted"))[1:])
			require.NoErrorf(t, err, "%s: %s", filepath.Base(file), line)
		}
	}
}
