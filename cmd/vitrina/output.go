package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"
)

// print writes a result: value as JSON with --output json, else the table.
func (a *app) print(value any, header []string, rows [][]string) error {
	if a.globals.Output == "json" {
		return a.printJSON(value)
	}
	return a.printTable(header, rows)
}

func (a *app) printJSON(value any) error {
	encoder := json.NewEncoder(a.stdout)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return fmt.Errorf("print the result: %w", err)
	}
	return nil
}

func (a *app) printTable(header []string, rows [][]string) error {
	w := tabwriter.NewWriter(a.stdout, 0, 4, 2, ' ', 0)
	for _, row := range append([][]string{header}, rows...) {
		if _, err := fmt.Fprintln(w, strings.TrimRight(strings.Join(row, "\t"), "\t ")); err != nil {
			return fmt.Errorf("print the result: %w", err)
		}
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print the result: %w", err)
	}
	return nil
}
