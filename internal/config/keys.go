package config

import (
	"fmt"
	"reflect"
	"strings"
	"time"
)

// EnvPrefix starts the name of every variable this program reads, but for PG* and OTEL_*.
const EnvPrefix = "VITRINA_"

// fileSuffix turns a secret's key or variable into that of a file with it.
const fileSuffix = "_file"

// Key is one setting, for the reference and for --help.
type Key struct {
	Path    string `json:"key"`
	Env     string `json:"env"`
	Type    string `json:"type"`
	Default string `json:"default,omitempty"`
	Desc    string `json:"description"`
	Secret  bool   `json:"secret,omitempty"`
	File    bool   `json:"file,omitempty"`   // may come from a file: Path+"_file", Env+"_FILE"
	Reload  bool   `json:"reload,omitempty"` // taken over while the program runs

	index []int // of the field in Config
}

// Keys lists every setting in the order of the reference.
func Keys() []Key { return walk(reflect.TypeFor[Config](), "", nil) }

func walk(t reflect.Type, prefix string, index []int) []Key {
	var keys []Key
	for i := range t.NumField() {
		field := t.Field(i)
		path := prefix + field.Tag.Get("key")
		at := append(append([]int{}, index...), i)
		if field.Type.Kind() == reflect.Struct {
			keys = append(keys, walk(field.Type, path+".", at)...)
			continue
		}
		secret := field.Type == reflect.TypeFor[Secret]()
		env := field.Tag.Get("env")
		if env == "" {
			env = EnvPrefix + strings.ToUpper(strings.ReplaceAll(path, ".", "_"))
		}
		keys = append(keys, Key{
			Path: path, Env: env, Type: typeName(field.Type), Default: field.Tag.Get("default"),
			Desc: field.Tag.Get("desc"), Secret: secret, File: secret && field.Tag.Get("nofile") == "",
			Reload: field.Tag.Get("reload") != "", index: at,
		})
	}
	return keys
}

func typeName(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[time.Duration]():
		return "duration"
	case reflect.TypeFor[[]time.Duration]():
		return "list of durations"
	case reflect.TypeFor[[]string]():
		return "list"
	case reflect.TypeFor[Secret]():
		return "secret"
	case reflect.TypeFor[int]():
		return "integer"
	case reflect.TypeFor[bool]():
		return "true or false"
	default:
		return "text"
	}
}

// field is the place of a key in c.
func (k Key) field(c *Config) reflect.Value { return reflect.ValueOf(c).Elem().FieldByIndex(k.index) }

// value is a key's value in c as the texts of the configuration write it; secrets in clear.
func (k Key) value(c *Config) string {
	switch v := k.field(c).Interface().(type) {
	case []string:
		return strings.Join(v, ",")
	case []time.Duration:
		texts := make([]string, len(v))
		for i, d := range v {
			texts[i] = shortDuration(d)
		}
		return strings.Join(texts, ",")
	case time.Duration:
		return shortDuration(v)
	case Secret:
		return v.Reveal()
	default:
		return fmt.Sprint(v)
	}
}

// shortDuration writes 168h and 2m where Duration.String writes 168h0m0s and 2m0s.
func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
