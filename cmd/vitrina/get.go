package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/pin-marketplace/vitrina/internal/httpserver"
	"github.com/pin-marketplace/vitrina/sinks/postgres"
	"github.com/pin-marketplace/vitrina/views"
)

type getCmd struct {
	API     string        `name:"api" placeholder:"URL" help:"Where the API is, as in http://127.0.0.1:8080. Default: http.addr."`
	Timeout time.Duration `default:"30s" help:"After how long to give up."`

	Purchase     getPurchaseCmd     `cmd:"" help:"The replica of a purchase: version, status, weight, targets."`
	Target       getTargetCmd       `cmd:"" help:"Contributions to a project or an object, and their active sum."`
	Card         getCardCmd         `cmd:"" help:"A card's row, and why its boost is what it is."`
	View         getViewCmd         `cmd:"" help:"Whether a view is marked, by which record, and what became of it."`
	PriceHistory getPriceHistoryCmd `cmd:"" help:"Price and price per metre of an object by day, month or year."`
}

// Help is part of kong's interface.
func (*getCmd) Help() string {
	return "Asks a running instance (role api). Exit code 1 when what is asked for does not exist.\n\nExample:\n  vitrina get card PropertyObject 0197c0de-7f00-7a51-9c1e-2f6f5d1b8a01 --api http://vitrina:8080"
}

type getPurchaseCmd struct {
	ID string `arg:"" help:"PurchaseId."`
}

// Help is part of kong's interface.
func (getPurchaseCmd) Help() string {
	return "Example:\n  vitrina get purchase 0197c0de-7f00-7a51-9c1e-2f6f5d1b8a01 --output json"
}

type getTargetCmd struct {
	Kind string `arg:"" enum:"Project,PropertyObject" help:"Project or PropertyObject."`
	ID   string `arg:"" help:"Id of the project or object."`
}

// Help is part of kong's interface.
func (getTargetCmd) Help() string {
	return "Example:\n  vitrina get target Project 0197c0de-7f00-7a51-9c1e-2f6f5d1b8a01"
}

type getCardCmd struct {
	Kind string `arg:"" enum:"Project,PropertyObject" help:"Project or PropertyObject."`
	ID   string `arg:"" help:"Id of the card."`
}

// Help is part of kong's interface.
func (getCardCmd) Help() string {
	return "Example:\n  vitrina get card PropertyObject 0197c0de-7f00-7a51-9c1e-2f6f5d1b8a01"
}

type getViewCmd struct {
	ID string `arg:"" help:"PropertyObjectViewId."`
}

// Help is part of kong's interface.
func (getViewCmd) Help() string {
	return "Example:\n  vitrina get view 0197c0de-7f00-7a51-9c1e-2f6f5d1b8a01"
}

type getPriceHistoryCmd struct {
	ID   string `arg:"" help:"PropertyObjectId."`
	Step string `enum:"day,month,year" default:"day" help:"Length of a period: day, month or year."`
	From string `placeholder:"TIME" help:"Facts from this time on, RFC 3339."`
	To   string `placeholder:"TIME" help:"Facts up to this time, RFC 3339."`
}

// Help is part of kong's interface.
func (getPriceHistoryCmd) Help() string {
	return "Example:\n  vitrina get price-history 0197c0de-7f00-7a51-9c1e-2f6f5d1b8a01 --step month --from 2026-01-01T00:00:00Z"
}

// Run shows a purchase.
func (c getPurchaseCmd) Run(a *app, get *getCmd) error {
	return showAnswer(a, get, "/api/v1/purchases/"+url.PathEscape(c.ID), func(p *views.Purchase) (answerTable, []string) {
		t := answerTable{header: []string{"KIND", "TARGET", "ACTIVE", "NAMED"}}
		for _, x := range p.Targets {
			t.add(string(x.Kind), x.ID.String(), yesNo(x.Active), yesNo(x.Named))
		}
		return t, []string{
			fmt.Sprintf("purchase %s: %s, version %d, weight %d, ends %s", p.PurchaseID, p.Status, p.Version, p.BoostWeight, p.EndsAt.Format(time.RFC3339)),
			fmt.Sprintf("from %s, partition %d, offset %d", p.Source.Topic, p.Source.Partition, p.Source.Offset),
			freshnessLine(p.Freshness),
		}
	})
}

// Run shows a target.
func (c getTargetCmd) Run(a *app, get *getCmd) error {
	return showAnswer(a, get, "/api/v1/targets/"+c.Kind+"/"+url.PathEscape(c.ID), func(t *views.Target) (answerTable, []string) {
		return contributionRows("", t.Contributions, answerTable{}), append(
			[]string{fmt.Sprintf("%s %s: boost %d", t.Kind, t.ID, t.Boost)}, truncation(t.Truncated, freshnessLine(t.Freshness))...)
	})
}

// Run shows a card.
func (c getCardCmd) Run(a *app, get *getCmd) error {
	return showAnswer(a, get, "/api/v1/cards/"+c.Kind+"/"+url.PathEscape(c.ID), func(x *views.Card) (answerTable, []string) {
		lines := []string{
			fmt.Sprintf("%s card %s: %s, boost %d, %d views, row version %d, updated %s", x.Kind, x.ID, x.Status, x.PromotionBoost, x.PopularityViews,
				x.RowVersion, x.UpdatedAt.Format(time.RFC3339)),
		}
		if x.ProjectID != nil {
			lines = append(lines, "of project "+x.ProjectID.String())
		}
		lines = append(lines, x.Explanation.Reason)
		return contributionRows("cascaded", x.Explanation.Cascaded, contributionRows("own", x.Explanation.Own, answerTable{})), append(lines, truncation(x.Explanation.Truncated, freshnessLine(x.Freshness))...)
	})
}

// Run shows a view.
func (c getViewCmd) Run(a *app, get *getCmd) error {
	return showAnswer(a, get, "/api/v1/property-object-views/"+url.PathEscape(c.ID), func(v *views.PropertyObjectView) (answerTable, []string) {
		lines := []string{
			fmt.Sprintf("view %s of object %s: %s since %s", v.PropertyObjectViewID, v.PropertyObjectID, v.State, v.Since.Format(time.RFC3339)),
			fmt.Sprintf("from %s, partition %d, offset %d", v.Source.Topic, v.Source.Partition, v.Source.Offset),
		}
		if v.Source.Earlier {
			lines = append(lines, "the topic was created anew since: the offset now belongs to another record")
		}
		if v.Retries != nil {
			lines = append(lines, fmt.Sprintf("its card was looked for again %d times", *v.Retries))
		}
		if v.NextTry != nil {
			lines = append(lines, "next at "+v.NextTry.Format(time.RFC3339))
		}
		if v.Code != "" {
			lines = append(lines, v.Code+": "+v.Reason)
		}
		return answerTable{}, append(lines, freshnessLine(v.Freshness))
	})
}

// Run shows a price history.
func (c getPriceHistoryCmd) Run(a *app, get *getCmd) error {
	query := url.Values{"step": {c.Step}}
	for name, value := range map[string]string{"from": c.From, "to": c.To} {
		if value != "" {
			query.Set(name, value)
		}
	}
	return showAnswer(a, get, "/api/v1/property-objects/"+url.PathEscape(c.ID)+"/price-history?"+query.Encode(), func(h *views.PriceHistory) (answerTable, []string) {
		t := answerTable{header: []string{"PERIOD", "PRICE", "PER METRE", "FACTS"}}
		for _, p := range h.Series.Series {
			t.add(p.Period, p.Price, p.PricePerMeter, strconv.FormatUint(p.Facts, 10))
		}
		growth := "unknown: it takes two periods"
		if h.GrowthPercent != nil {
			growth = h.GrowthPercent.String() + " %"
		}
		return t, []string{fmt.Sprintf("object %s by %s: %d periods, growth %s", h.PropertyObjectID, h.Series.Step, len(h.Series.Series), growth), freshnessLine(h.Freshness)}
	})
}

// answerTable is what is shown below the lines.
type answerTable struct {
	header []string
	rows   [][]string
}

func (t *answerTable) add(row ...string) { t.rows = append(t.rows, row) }

func contributionRows(reach string, list []postgres.Contribution, t answerTable) answerTable {
	t.header = []string{"PURCHASE", "WEIGHT", "STATUS", "VERSION", "ACTIVE"}
	if reach != "" {
		t.header = append(t.header, "REACH")
	}
	for _, c := range list {
		row := []string{c.PurchaseID.String(), strconv.Itoa(c.BoostWeight), string(c.Status), strconv.FormatInt(c.Version, 10), yesNo(c.Active)}
		if reach != "" {
			row = append(row, reach)
		}
		t.rows = append(t.rows, row)
	}
	return t
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func truncation(truncated bool, rest string) []string {
	if truncated {
		return []string{"there are more contributions than shown", rest}
	}
	return []string{rest}
}

// freshnessLine says in one line how old the answer may be.
func freshnessLine(f views.Freshness) string {
	var parts []string
	for _, consumer := range []string{"promotion", "popularity", "price"} {
		lag, ok := f.Lag[consumer]
		switch {
		case !ok:
		case lag == nil:
			parts = append(parts, "unknown "+consumer)
		default:
			parts = append(parts, fmt.Sprintf("%d %s", *lag, consumer))
		}
	}
	line := fmt.Sprintf("as of %s (%s); events still to be processed: %s", f.AsOf.Format(time.RFC3339), f.ServedBy, strings.Join(parts, ", "))
	if f.ViewLag != nil && *f.ViewLag > 0 {
		line += fmt.Sprintf("; the copy that answered is %d records behind", *f.ViewLag)
	}
	if f.Note != "" {
		line += "; " + f.Note
	}
	return line
}

// showAnswer asks and prints the answer: the server's JSON as it came, or lines and a table.
func showAnswer[T any](a *app, get *getCmd, path string, render func(*T) (answerTable, []string)) error {
	body, err := get.ask(a, path)
	if err != nil {
		return err
	}
	if a.globals.Output == "json" {
		return a.printJSON(json.RawMessage(body))
	}
	value := new(T)
	if err := json.Unmarshal(body, value); err != nil {
		return fmt.Errorf("the API's answer cannot be read; is this vitrina of the same version? %w", err)
	}
	t, lines := render(value)
	for _, line := range lines {
		if _, err := fmt.Fprintln(a.stdout, line); err != nil {
			return fmt.Errorf("print the result: %w", err)
		}
	}
	if len(t.rows) == 0 {
		return nil
	}
	return a.printTable(t.header, t.rows)
}

// maxAnswer bounds what is read of an answer: the longest series is far below it.
const maxAnswer = 16 << 20

// ask returns the body of a 200, or the problem as one line.
func (c *getCmd) ask(a *app, path string) (body []byte, err error) {
	base, err := c.base(a)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(a.ctx, c.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+path, nil)
	if err != nil {
		return nil, usageError{fmt.Errorf("--api %s: %w", base, err)}
	}
	req.Header.Set("Accept", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask the API at %s: %w; does an instance with the role api run there? --api names another", base, errors.Unwrap(err))
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	body, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("read the answer of the API at %s: %w", base, err)
	}
	if resp.StatusCode == http.StatusOK {
		return body, nil
	}
	return nil, errors.New(problemLine(resp, body))
}

// problemLine is what an error document says, in one line.
func problemLine(resp *http.Response, body []byte) string {
	var p httpserver.Problem
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if kind != "application/problem+json" || json.Unmarshal(body, &p) != nil || p.Detail == "" {
		return fmt.Sprintf("the API answered %s", resp.Status)
	}
	line := strings.Join(strings.Fields(p.Detail), " ")
	if after := resp.Header.Get("Retry-After"); after != "" {
		line += " (try again in " + after + " s)"
	}
	return line
}

// base is the URL of --api, or that of http.addr: an address that listens everywhere is asked on this machine.
func (c *getCmd) base(a *app) (string, error) {
	if c.API != "" {
		u, err := url.Parse(c.API)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return "", usageError{fmt.Errorf("--api %s: write a URL, as in http://127.0.0.1:8080", c.API)}
		}
		return strings.TrimRight(c.API, "/"), nil
	}
	cfg, err := a.load()
	if err != nil {
		return "", err
	}
	host, port, err := net.SplitHostPort(cfg.HTTP.Addr)
	if err != nil {
		return "", fmt.Errorf("http.addr %s: %w", cfg.HTTP.Addr, err)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "http://" + net.JoinHostPort(host, port), nil
}
