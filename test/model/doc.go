// Package model is an independent model of the three consumers: it reads the raw records with encoding/json, knows neither
// codecs nor processors nor sinks of this program, and says what must be in the databases and dead-letter topics once every
// record has been processed. Tests and the demo compare the program with it.
//
// It is written from the specification and its decisions (D1 to D41), as plainly as possible and without regard to speed.
// It assumes, and the generator of internal/generate keeps to it:
//
//   - the final state is meant: every late card has arrived, every retry has run, every recompute has happened;
//   - records are given in the order in which they are written; records of one purchase may change places among
//     partitions, so no two different events of a purchase carry the same version (the newest version decides), a target
//     that is dropped is no Hidden card (D27 would depend on the order), and a MessageId belongs to one event;
//   - repeated events of one view name the same object;
//   - a card's status does not change while events are processed, and project cards are there from the start (an increment
//     of a missing project is lost by specification, so its number would depend on timing);
//   - a view whose object has no card in the end is dead-lettered after its retries.
package model
