// Package views answers questions about what the consumers have done: purchases and marks from their group tables (the owning
// processor's, or a Goka view that keeps the whole table), targets, cards and the ledger from PostgreSQL, prices from ClickHouse,
// and the state of the pipelines from the broker. The HTTP API, the console and `vitrina get` are its faces (contracts, section 5).
//
// No answer is silently old. Each one says which records its consumer has still to finish (freshness.lag) and, where a copy of
// a table answered, how far the copy is behind it (freshness.viewLag); what cannot be answered so is refused with 503,
// Retry-After and the reason.
package views
