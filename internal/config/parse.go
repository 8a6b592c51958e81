package config

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// set parses raw (a YAML value or a text) into the field of key k. Its errors never quote a secret.
func (k Key) set(c *Config, raw any) error {
	field := k.field(c)
	switch field.Interface().(type) {
	case string, Secret:
		text, ok := raw.(string)
		if !ok {
			return errors.New("must be text: put it in quotes")
		}
		field.SetString(strings.TrimSpace(text))
		return nil
	case bool:
		value, err := parseBool(raw)
		if err != nil {
			return err
		}
		field.SetBool(value)
		return nil
	case int:
		value, err := parseInt(raw)
		if err != nil {
			return err
		}
		field.SetInt(int64(value))
		return nil
	case time.Duration:
		value, err := parseDuration(raw)
		if err != nil {
			return err
		}
		field.SetInt(int64(value))
		return nil
	case []string:
		items, err := parseList(raw, func(item any) (string, error) {
			text, ok := item.(string)
			if !ok {
				return "", fmt.Errorf("%v must be text: put it in quotes", item)
			}
			return strings.TrimSpace(text), nil
		})
		if err != nil {
			return err
		}
		field.Set(reflect.ValueOf(items))
		return nil
	case []time.Duration:
		items, err := parseList(raw, parseDuration)
		if err != nil {
			return err
		}
		field.Set(reflect.ValueOf(items))
		return nil
	}
	return fmt.Errorf("has a type the configuration cannot read: %s", field.Type())
}

func parseBool(raw any) (bool, error) {
	switch v := raw.(type) {
	case bool:
		return v, nil
	case string:
		switch strings.ToLower(strings.TrimSpace(v)) {
		case "true", "on", "yes", "1":
			return true, nil
		case "false", "off", "no", "0":
			return false, nil
		}
	}
	return false, fmt.Errorf("must be true or false, not %v", raw)
}

func parseInt(raw any) (int, error) {
	switch v := raw.(type) {
	case int:
		return v, nil
	case string:
		if n, err := strconv.Atoi(strings.TrimSpace(v)); err == nil {
			return n, nil
		}
	}
	return 0, fmt.Errorf("must be a whole number, not %v", raw)
}

func parseDuration(raw any) (time.Duration, error) {
	if text, ok := raw.(string); ok {
		if d, err := time.ParseDuration(strings.TrimSpace(text)); err == nil {
			return d, nil
		}
	}
	return 0, fmt.Errorf("must be a duration with its unit, such as 500ms, 30s, 2m or 168h, not %v", raw)
}

// parseList reads a YAML list, or a text with commas.
func parseList[T any](raw any, parse func(any) (T, error)) ([]T, error) {
	var parts []any
	switch v := raw.(type) {
	case []any:
		parts = v
	case string:
		if strings.TrimSpace(v) != "" {
			for part := range strings.SplitSeq(v, ",") {
				parts = append(parts, part)
			}
		}
	case nil:
	default:
		parts = []any{v}
	}
	items := make([]T, 0, len(parts))
	for _, part := range parts {
		item, err := parse(part)
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	return items, nil
}
