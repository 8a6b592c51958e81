package config

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/v2"
	yamlv3 "go.yaml.in/yaml/v3"
)

// Source is where settings come from, weakest first.
type Source struct {
	File    string            // YAML file; empty: none
	Environ []string          // os.Environ()
	Flags   map[string]string // key -> text
}

// otherVariables start with VITRINA_ but are no settings: the file itself, and the development tools' download cache.
func otherVariables() []string { return []string{"VITRINA_CONFIG", "VITRINA_CACHE"} }

// serviceLink matches what Kubernetes puts into the environment of every pod beside a service called vitrina or
// vitrina-something. Without this exception the program could not start there.
var serviceLink = regexp.MustCompile(`^VITRINA_(.+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT(_\d+_(TCP|UDP|SCTP)(_.+)?)?)$`)

// Load reads the settings and checks them. The error, if any, is of type Faults and holds everything that is wrong,
// unless the file itself cannot be read. What a role needs besides is checked by Require.
func Load(src Source) (*Config, error) {
	c, f, err := read(src)
	if err != nil {
		return nil, err
	}
	c.validate(f)
	if err := f.err(); err != nil {
		return nil, err
	}
	return c, nil
}

// Default returns the defaults. They are texts of this package that a test reads one by one, so they have no faults.
func Default() *Config {
	c := &Config{}
	setDefaults(c, &faults{})
	return c
}

func setDefaults(c *Config, f *faults) {
	for _, k := range Keys() {
		if k.Default == "" {
			continue
		}
		if err := k.set(c, k.Default); err != nil {
			f.add(k.Path, "default: %s", err)
		}
	}
}

// layer is one source: values by key, and what to call the source of each.
type layer struct {
	values  map[string]any
	sources map[string]string
}

func read(src Source) (*Config, *faults, error) {
	f := &faults{sources: map[string]string{}}
	var layers []layer
	if src.File != "" {
		l, err := fileLayer(src.File, f)
		if err != nil {
			return nil, nil, err
		}
		layers = append(layers, l)
	}
	layers = append(layers, envLayer(src.Environ, f), flagLayer(src.Flags, f))

	merged := koanf.New(".")
	for _, l := range layers {
		resolveFiles(l, f)
		if err := merged.Load(confmap.Provider(l.values, "."), nil); err != nil {
			return nil, nil, fmt.Errorf("merge the configuration: %w", err)
		}
		maps.Copy(f.sources, l.sources)
	}
	c := &Config{}
	setDefaults(c, f)
	for _, k := range Keys() {
		if !merged.Exists(k.Path) {
			continue
		}
		if err := k.set(c, merged.Get(k.Path)); err != nil {
			f.add(k.Path, "%s", err)
		}
	}
	return c, f, nil
}

func fileLayer(path string, f *faults) (layer, error) {
	k := koanf.New(".")
	if err := k.Load(file.Provider(path), yaml.Parser()); err != nil {
		var mistyped *yamlv3.TypeError
		if errors.As(err, &mistyped) {
			for _, problem := range mistyped.Errors {
				if strings.Contains(problem, "already defined") { // names two lines and the setting, no value
					return layer{}, fmt.Errorf("configuration file %s: a setting is there twice (%s): remove one of them", path, problem)
				}
			}
			// The parser quotes what it found, which may be a secret.
			return layer{}, fmt.Errorf("configuration file %s: it must be a YAML map of settings, such as \"kafka: {brokers: host:9092}\"", path)
		}
		return layer{}, fmt.Errorf("read configuration file %s: %w", path, err)
	}
	l := layer{values: map[string]any{}, sources: map[string]string{}}
	known, sections := knownPaths(), sectionNames()
	for path0, value := range k.All() {
		if value == nil {
			continue // "dsn:" with nothing behind it sets nothing
		}
		if m, ok := value.(map[string]any); ok && len(m) == 0 && slices.Contains(sections, path0) {
			continue
		}
		switch {
		case slices.Contains(known, path0):
			l.values[path0], l.sources[path0] = value, path
		case slices.Contains(sections, path0):
			f.addFrom(path, path0, "is a section: write its settings below it, indented")
		default:
			unknown(f, path, path0, known)
		}
	}
	return l, nil
}

func unknown(f *faults, source, name string, known []string) {
	if near, ok := nearest(name, known); ok {
		f.addFrom(source, name, "is not a setting; did you mean %s?", near)
		return
	}
	f.addFrom(source, name, "is not a setting; vitrina config reference lists them")
}

func envLayer(environ []string, f *faults) layer {
	l := layer{values: map[string]any{}, sources: map[string]string{}}
	byEnv := map[string]string{}
	for _, k := range Keys() {
		byEnv[k.Env] = k.Path
		if k.File {
			byEnv[k.Env+strings.ToUpper(fileSuffix)] = k.Path + fileSuffix
		}
	}
	known := slices.Sorted(maps.Keys(byEnv))
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, EnvPrefix) {
			continue
		}
		path, ok := byEnv[name]
		switch {
		case !ok && (slices.Contains(otherVariables(), name) || serviceLink.MatchString(name)):
		case !ok:
			unknown(f, "environment", name, known)
		case value == "":
			// A variable set to nothing is what "${TOKEN:-}" of a compose file gives: it sets nothing.
		default:
			l.values[path], l.sources[path] = value, name
		}
	}
	return l
}

func flagLayer(flags map[string]string, f *faults) layer {
	l := layer{values: map[string]any{}, sources: map[string]string{}}
	known := knownPaths()
	for path, value := range flags {
		if !slices.Contains(known, path) {
			unknown(f, "flag --set", path, known)
			continue
		}
		l.values[path], l.sources[path] = value, "flag"
	}
	return l
}

// resolveFiles replaces each "…_file" key of a secret by what the file holds, without the newline editors add.
func resolveFiles(l layer, f *faults) {
	for _, k := range Keys() {
		if !k.File {
			continue
		}
		fileKey := k.Path + fileSuffix
		raw, ok := l.values[fileKey]
		if !ok {
			continue
		}
		source := l.sources[fileKey]
		delete(l.values, fileKey)
		delete(l.sources, fileKey)
		name, isText := raw.(string)
		switch _, both := l.values[k.Path]; {
		case both:
			f.addFrom(source, fileKey, "is set beside %s: keep one of them", k.Path)
		case !isText:
			f.addFrom(source, fileKey, "must be the name of a file")
		default:
			content, err := os.ReadFile(name)
			if err != nil {
				f.addFrom(source, fileKey, "cannot be read: %v", err)
				continue
			}
			l.values[k.Path] = strings.TrimRight(string(content), "\r\n")
			l.sources[k.Path] = source + " " + name
		}
	}
}

// knownPaths are all keys a file or flag may set.
func knownPaths() []string {
	var paths []string
	for _, k := range Keys() {
		paths = append(paths, k.Path)
		if k.File {
			paths = append(paths, k.Path+fileSuffix)
		}
	}
	return paths
}

// sectionNames are the inner nodes of the tree of keys.
func sectionNames() []string {
	set := map[string]bool{}
	for _, k := range Keys() {
		for i, r := range k.Path {
			if r == '.' {
				set[k.Path[:i]] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(set))
}
