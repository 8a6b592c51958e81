// Package generate makes realistic event streams of a city: projects with their objects, sessions of people who look at
// them, promotion campaigns, price moves; with duplicates, disorder, late cards and malformed records of every kind. The
// same options give the same stream, byte for byte.
package generate

import (
	"errors"
	"fmt"
	"time"
)

// Options say what is generated. The zero value is nothing; start from Defaults.
type Options struct {
	Seed  uint64
	Start time.Time     // time of the first event
	Span  time.Duration // time between the first and the last event

	Projects int // projects of the city
	Objects  int // property objects, spread over the projects

	Views     int // distinct finished views
	Purchases int // purchase events: versions of campaigns
	Prices    int // price changes

	Duplicates float64 // share of records that come again later
	Reordered  float64 // share of records that come late, behind later ones
	LateCards  float64 // share of object cards that come while events already name them
	Homeless   float64 // share of views of objects that never get a card
	Bare       float64 // share of records in the bare form (metadata in headers)
	WrongKeys  float64 // share of views and purchases whose Kafka key is not the payload's id (D16, D29)
	Traced     float64 // share of records with a traceparent header
	Malformed  int     // malformed records of each kind, in each topic

	PriceHistory time.Duration // how far back the older price changes lie; 0: all within Span
}

// Defaults are a small city for a try.
func Defaults() Options {
	return Options{
		Seed: 1, Span: time.Hour, Projects: 20, Objects: 2000, Views: 10_000, Purchases: 500, Prices: 2000,
		Duplicates: 0.05, Reordered: 0.02, LateCards: 0.02, Bare: 0.2, WrongKeys: 0.005, Traced: 0.1,
		PriceHistory: 180 * 24 * time.Hour,
	}
}

// Validate lists everything that is wrong.
func (o Options) Validate() error {
	var errs []error
	for _, share := range []struct {
		name  string
		value float64
	}{
		{"duplicates", o.Duplicates}, {"reordered", o.Reordered}, {"late-cards", o.LateCards}, {"homeless", o.Homeless},
		{"bare", o.Bare}, {"wrong-keys", o.WrongKeys}, {"traced", o.Traced},
	} {
		if share.value < 0 || share.value > 1 {
			errs = append(errs, fmt.Errorf("%s is %v; it must lie between 0 and 1", share.name, share.value))
		}
	}
	for _, count := range []struct {
		name  string
		value int
	}{{"views", o.Views}, {"purchases", o.Purchases}, {"prices", o.Prices}, {"malformed", o.Malformed}} {
		if count.value < 0 {
			errs = append(errs, fmt.Errorf("%s is %d; it must not be negative", count.name, count.value))
		}
	}
	if o.Projects < 1 || o.Objects < o.Projects {
		errs = append(errs, fmt.Errorf("there must be at least one project, and an object for each (%d projects, %d objects)", o.Projects, o.Objects))
	}
	if o.Start.Year() < 1971 || o.Start.Year() > 2100 {
		errs = append(errs, errors.New("start must lie between 1971 and 2100"))
	}
	if o.Span < 0 || o.PriceHistory < 0 || o.Start.Add(-o.PriceHistory).Year() < 1971 {
		errs = append(errs, errors.New("span and price-history must not be negative, nor reach back before 1971"))
	}
	return errors.Join(errs...)
}

// Records is about how many records the options give, malformed ones and duplicates included.
func (o Options) Records() int {
	valid := o.Views + o.Purchases + o.Prices
	return valid + int(float64(valid)*o.Duplicates) + o.Malformed*(len(malformedPurchases())+len(malformedViews())+len(malformedPrices()))
}
