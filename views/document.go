package views

import (
	_ "embed"
	"fmt"

	"github.com/goccy/go-yaml"
)

//go:embed openapi.yaml
var openapiYAML []byte

// document is the OpenAPI document as JSON.
func document() ([]byte, error) {
	doc, err := yaml.YAMLToJSON(openapiYAML)
	if err != nil {
		return nil, fmt.Errorf("read the embedded OpenAPI document: %w", err)
	}
	return doc, nil
}
