package sidecar

import (
	"errors"

	"github.com/fsnotify/fsnotify"
)

// CannotWatch makes watching fail as on a machine without inotify instances.
// It is to be called before Run.
func (s *Sidecar) CannotWatch() {
	s.reload.watch.open = func() (*fsnotify.Watcher, error) { return nil, errors.New("too many open files") }
}
