// Package telemetry is everything an operator sees of a running vitrina: metrics, log lines and spans, under the names of
// the specification and of contracts section 6. It keeps no globals: what is made here is handed to those who report.
package telemetry
