package main

import (
	"errors"
	"log/slog"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/weir-rl/weir/pkg/sidecar"
)

type serveCmd struct {
	Config string `placeholder:"FILE" help:"Settings, as config/sidecar.yaml; variables and flags stand above them."`

	flags func() settings
	kong.Plugins
}

// Run serves until the context of the process ends. A SIGHUP has the policy
// files read again, as daemons do.
func (c *serveCmd) Run(e *env) error {
	s, found := loadSettings(e, c.Config, c.flags())
	if len(found) > 0 {
		// Faults of the files that the settings name belong to the same list:
		// nobody wants to mend the one to meet the other.
		var faults []error
		for _, f := range found {
			faults = append(faults, f)
		}
		p, more := s.Config.Prepare()
		return e.refuse(append(faults, more...), p.Notices)
	}
	// Whoever reads the log may go; requests are answered all the same.
	signal.Ignore(syscall.SIGPIPE)
	sc, err := sidecar.New(sidecar.Options{
		Config: s.Config,
		Origin: s.Origin,
		Build:  build(),
		Logger: newLogger(e, s.Config.Log),
		Reload: e.hangups.take(),
	})
	if f := (*sidecar.StartError)(nil); errors.As(err, &f) {
		return e.refuse(f.Faults, f.Notices)
	}
	if err != nil {
		return err
	}
	return sc.Run(e.ctx)
}

func newLogger(e *env, cfg sidecar.LogConfig) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(cfg.Level)); err != nil {
		level = slog.LevelInfo // The table of settings allows only names that parse.
	}
	opts := &slog.HandlerOptions{Level: level}
	if cfg.Format == "json" {
		return slog.New(slog.NewJSONHandler(e.stderr, opts))
	}
	return slog.New(slog.NewTextHandler(e.stderr, opts))
}
