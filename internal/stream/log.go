package stream

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
)

// gokaLog carries Goka's few lines into the structured log. They are for whoever debugs Goka, so they have one event name and
// the lowest level; what an operator must know is logged by the runtime itself.
type gokaLog struct {
	ctx context.Context //nolint:containedctx // goka.Logger has no context
	log *slog.Logger
}

func (g gokaLog) write(text string) {
	g.log.LogAttrs(g.ctx, slog.LevelDebug, strings.TrimSpace(text), slog.String("event", "goka"))
}

func (g gokaLog) Print(v ...any)                 { g.write(fmt.Sprint(v...)) }
func (g gokaLog) Println(v ...any)               { g.write(fmt.Sprintln(v...)) }
func (g gokaLog) Printf(format string, v ...any) { g.write(fmt.Sprintf(format, v...)) }

// maxReason bounds what /readyz shows of an error.
const maxReason = 600

// oneLine is an error for a person: Goka wraps errors in lists of one and appends stacks, over many lines.
func oneLine(err error) string {
	text := strings.Join(strings.Fields(err.Error()), " ")
	text = strings.ReplaceAll(text, "1 error occurred: * ", "")
	if r := []rune(text); len(r) > maxReason {
		text = string(r[:maxReason]) + "…"
	}
	return text
}
