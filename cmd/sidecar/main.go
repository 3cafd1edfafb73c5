// Command sidecar is Weir: a rate-limit service beside an Envoy.
//
// It ends with exit code 0 when it did what it was asked, 1 when it could not
// (each reason is one line on standard error), and 2 when it did not
// understand the command line.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"

	"github.com/alecthomas/kong"
)

// The exit codes. A subcommand may have more, and then says so in its help.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() { os.Exit(process()) }

// process is main with an exit code, for tests that run this program as
// themselves. The first signal ends what runs in its own order; a second one
// ends the process at once.
func process() int {
	ctx, cancel := context.WithCancelCause(context.Background())
	// Not signal.NotifyContext: a second signal must count however soon it
	// follows the first.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	hup := hangups{signals: make(chan os.Signal, 1), taken: make(chan struct{}, 1)}
	if !signal.Ignored(syscall.SIGHUP) { // as below nohup
		signal.Notify(hup.signals, syscall.SIGHUP)
	}
	go func() {
		for ending := false; ; ending = true {
			sig := hup.next(signals)
			if ending {
				os.Exit(exitFailed)
			}
			cancel(fmt.Errorf("received %s", sig))
		}
	}()
	return run(ctx, &hup, os.Args[1:], os.Environ(), os.Stdout, os.Stderr)
}

// hangups decide what a SIGHUP is: one more signal that ends the process,
// until a subcommand takes them for something else.
type hangups struct {
	signals chan os.Signal
	mine    atomic.Bool   // a subcommand has taken them
	taken   chan struct{} // one value for any number of signals that nobody has seen yet
}

// take returns a channel that gets a value after each SIGHUP from now on, also
// below nohup.
func (h *hangups) take() <-chan struct{} {
	h.mine.Store(true)
	signal.Notify(h.signals, syscall.SIGHUP)
	return h.taken
}

// next returns the next signal that ends the process.
func (h *hangups) next(signals <-chan os.Signal) os.Signal {
	for {
		select {
		case sig := <-signals:
			return sig
		case sig := <-h.signals:
			if !h.mine.Load() {
				return sig
			}
			select {
			case h.taken <- struct{}{}:
			default:
			}
		}
	}
}

// env is what a subcommand gets besides its flags.
type env struct {
	ctx            context.Context
	hangups        *hangups
	environ        []string
	stdout, stderr io.Writer
}

// say writes one line to standard output.
func (e *env) say(format string, args ...any) error {
	_, err := fmt.Fprintf(e.stdout, format+"\n", args...)
	return err
}

// complain writes one line to standard error.
func (e *env) complain(line any) {
	fmt.Fprintln(e.stderr, line)
}

// exitCode is the error of a subcommand that has said everything already.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

type commands struct {
	Serve   serveCmd   `cmd:"" help:"Answer Envoy's rate-limit requests until SIGTERM."`
	Check   checkCmd   `cmd:"" help:"Check policy files, offline."`
	Call    callCmd    `cmd:"" help:"Send one request to a rate-limit service and print the whole answer."`
	Key     keyCmd     `cmd:"" help:"Print the store keys of a descriptor, offline."`
	Health  healthCmd  `cmd:"" help:"Ask a rate-limit service for its health."`
	Version versionCmd `cmd:"" help:"Print the version."`
}

// run is the whole program but for the process around it.
func run(ctx context.Context, hup *hangups, args, environ []string, stdout, stderr io.Writer) int {
	e := &env{ctx: ctx, hangups: hup, environ: environ, stdout: stdout, stderr: stderr}
	helped := false // kong goes on after --help unless its Exit ends the process
	parser, err := newParser(e, func(int) { helped = true })
	if err != nil {
		e.complain(err)
		return exitFailed
	}
	selected, err := parser.Parse(args)
	switch {
	case helped:
		return exitOK
	case err != nil:
		e.complain(fmt.Errorf("sidecar: %w; see sidecar %s--help", err, commandOf(err)))
		return exitUsage
	}
	err = selected.Run(e)
	if code := exitCode(0); errors.As(err, &code) {
		return int(code)
	}
	if err != nil {
		e.complain(fmt.Errorf("sidecar: %w", err))
		return exitFailed
	}
	return exitOK
}

// commandOf is the command that a usage error is about, with a space, or "".
func commandOf(err error) string {
	if p := (*kong.ParseError)(nil); errors.As(err, &p) && p.Context != nil {
		if node := p.Context.Selected(); node != nil {
			return node.Name + " "
		}
	}
	return ""
}

// newParser builds the model of the command line; exit is called after a help.
func newParser(e *env, exit func(int)) (*kong.Kong, error) {
	var cli commands
	cli.Serve.flags, cli.Serve.Plugins = settingFlags()
	cli.Key.flags, cli.Key.Plugins = settingFlags()
	return kong.New(&cli,
		kong.Name("sidecar"),
		kong.Description("Weir: a rate-limit sidecar for Envoy."),
		kong.Writers(e.stdout, e.stderr),
		kong.Exit(exit),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.Vars{"descriptor_help": descriptorHelp},
		kong.Bind(e),
	)
}
