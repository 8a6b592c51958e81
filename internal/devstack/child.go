package devstack

// RunChild must be the first call of every program that starts devstack's servers (main, or devtest.Main): some servers are
// this same program started again. In such a child it serves until told to end and returns the exit code and true; otherwise
// it returns false at once.
func RunChild() (code int, child bool) { return 0, false }
