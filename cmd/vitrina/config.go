package main

import "github.com/pin-marketplace/vitrina/internal/config"

type configCmd struct {
	Show      configShowCmd      `cmd:"" help:"Print the settings this command line would use, secrets hidden."`
	Reference configReferenceCmd `cmd:"" help:"Explain every setting: docs/configuration.md, or JSON."`
}

// Help is part of kong's interface.
func (configCmd) Help() string {
	return "Example:\n  vitrina config show --config vitrina.yaml"
}

type configShowCmd struct {
	Changed bool `help:"Only what differs from the defaults."`
}

// Help is part of kong's interface.
func (configShowCmd) Help() string {
	return "Reaches nothing: \"vitrina check\" does.\n\nExample:\n  vitrina config show --config vitrina.yaml --changed"
}

// Run prints the settings.
func (c configShowCmd) Run(a *app) error {
	cfg, err := a.load()
	if err != nil {
		return err
	}
	var values []config.Value
	var rows [][]string
	for _, v := range cfg.Show() {
		if c.Changed && !v.Set {
			continue
		}
		values = append(values, v)
		mark := ""
		if v.Set {
			mark = "changed"
		}
		rows = append(rows, []string{v.Key, v.Value, mark})
	}
	return a.print(values, []string{"KEY", "VALUE", ""}, rows)
}

type configReferenceCmd struct{}

// Help is part of kong's interface.
func (configReferenceCmd) Help() string {
	return "Example:\n  vitrina config reference > docs/configuration.md"
}

// Run prints the reference.
func (configReferenceCmd) Run(a *app) error {
	if a.globals.Output == "json" {
		return a.printJSON(config.Keys())
	}
	return config.Reference(a.stdout)
}
