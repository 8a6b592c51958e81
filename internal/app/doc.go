// Package app puts the program together: each role's processor, sinks and workers, the order in which they start and stop,
// and what they say about themselves. It holds no rules of the domain.
package app
