package config

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every line of a log in the configuration's directory was taken for a change of the configuration, and each reload wrote a line.
func TestOnlyTheFilesContentsAreAChange(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, text string) { require.NoError(t, os.WriteFile(at(name), []byte(text), 0o600)) }
	link := func(to string) { // as Kubernetes does it
		require.NoError(t, os.Symlink(to, at("..data_tmp")))
		require.NoError(t, os.Rename(at("..data_tmp"), at("..data")))
	}
	require.NoError(t, os.MkdirAll(at("one"), 0o700))
	require.NoError(t, os.MkdirAll(at("two"), 0o700))
	write("one/vitrina.yaml", "a: 1\n")
	write("two/vitrina.yaml", "a: 2\n")
	link("one")
	require.NoError(t, os.Symlink("..data/vitrina.yaml", at("vitrina.yaml")))

	c := contents{file: at("vitrina.yaml")}
	for _, step := range []struct {
		name    string
		do      func()
		changed bool
	}{
		{"the first look", func() {}, true},
		{"nothing", func() {}, false},
		{"a line in the log", func() { write("vitrina.log", "{}") }, false},
		{"the same text again", func() { write("one/vitrina.yaml", "a: 1\n") }, false},
		{"another link", func() { link("two") }, true},
		{"the file is gone", func() { require.NoError(t, os.Remove(at("vitrina.yaml"))) }, true},
		{"the file is still gone", func() { write("vitrina.log", "{}{}") }, false},
		{"the file is back", func() { write("vitrina.yaml", "a: 2\n") }, true},
	} {
		step.do()
		require.Equal(t, step.changed, c.changed(), step.name)
	}
}
