package sidecar

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/fsnotify/fsnotify"
)

const (
	// maxWatched bounds the watched folders; a user of Linux may have some
	// thousands in all of his processes. The poll serves larger trees.
	maxWatched = 1000

	// maxLinks bounds the symbolic links of one path, as the kernel does.
	maxLinks = 40

	// watchRounds bounds how often the places are looked for again because they
	// changed meanwhile. If they still do, events will tell.
	watchRounds = 8
)

// watcher tells that something changed at or on the way to the policy files.
// It watches folders, never files: a file that is replaced by renaming is
// another one. It belongs to one goroutine.
type watcher struct {
	paths []string
	open  func() (*fsnotify.Watcher, error)

	fs    *fsnotify.Watcher // nil while nothing can be watched
	at    places
	stale bool // a watched folder was moved or removed, and may be another one by now
}

// sync watches the folders that matter now. What changes after it returned is
// told by an event, so files must be read after it.
func (w *watcher) sync() error {
	for range watchRounds {
		want, err := findPlaces(w.paths)
		if err != nil {
			w.close()
			return err
		}
		if w.fs != nil && !w.stale && w.at.same(want) {
			return nil
		}
		// A new one each time: a watch stays with a folder that was moved away,
		// under a path that belongs to another one by now.
		fresh, err := w.open()
		if err != nil {
			w.close()
			return fmt.Errorf("watch: %w", err)
		}
		for dir := range want {
			if err := fresh.Add(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				_ = fresh.Close() // It has nothing to lose.
				w.close()
				return fmt.Errorf("watch %s: %w", dir, err)
			}
		}
		w.close()
		w.fs, w.at, w.stale = fresh, want, false
	}
	return nil
}

func (w *watcher) close() {
	if w.fs != nil {
		_ = w.fs.Close() // It has nothing to lose.
		w.fs = nil
	}
}

// events are those of the folders; nil, on which nothing ever comes, without a watch.
func (w *watcher) events() <-chan fsnotify.Event {
	if w.fs == nil {
		return nil
	}
	return w.fs.Events
}

// errors say that events were lost.
func (w *watcher) errors() <-chan error {
	if w.fs == nil {
		return nil
	}
	return w.fs.Errors
}

// concerns says whether an event may have changed the policy files.
func (w *watcher) concerns(e fsnotify.Event) bool {
	name := filepath.Clean(e.Name)
	if w.at[name] != nil && (e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename)) {
		w.stale = true
		return true
	}
	p := w.at[filepath.Dir(name)]
	return p != nil && (p.all || p.names[filepath.Base(name)])
}

// places are the folders to watch, by paths without symbolic links.
type places map[string]*place

type place struct {
	info  fs.FileInfo
	all   bool            // everything in it matters
	names map[string]bool // else these do
}

func (p places) same(q places) bool {
	return maps.EqualFunc(p, q, func(a, b *place) bool {
		return a.all == b.all && maps.Equal(a.names, b.names) && os.SameFile(a.info, b.info)
	})
}

// findPlaces returns the folders in which something may change what the paths
// bring: those that hold the files, those that hold the symbolic links on the
// way (Kubernetes replaces a mounted ConfigMap by one of them), and where the
// way breaks off, the last one that exists.
func findPlaces(paths []string) (places, error) {
	p := places{}
	for _, path := range paths {
		abs, err := filepath.Abs(path)
		if err != nil {
			return nil, err
		}
		if full, info := p.follow(abs); info != nil && info.IsDir() {
			p.tree(full, info)
		}
	}
	if len(p) > maxWatched {
		return nil, fmt.Errorf("watch: more than %d folders", maxWatched)
	}
	return p, nil
}

func (p places) add(dir string) *place {
	at := p[dir]
	if at == nil {
		info, err := os.Stat(dir)
		if err != nil {
			return &place{names: map[string]bool{}} // It has gone; its own folder tells when it returns.
		}
		at = &place{info: info, names: map[string]bool{}}
		p[dir] = at
	}
	return at
}

// follow goes along an absolute path and returns where it ends, nil for
// nowhere.
func (p places) follow(path string) (string, fs.FileInfo) {
	const root = string(filepath.Separator)
	full, rest := root, split(path)
	for links := 0; len(rest) > 0; {
		name := rest[0]
		rest = rest[1:]
		if name == ".." {
			full = filepath.Dir(full)
			continue
		}
		next := filepath.Join(full, name)
		info, err := os.Lstat(next)
		if err != nil {
			p.add(full).names[name] = true
			return "", nil
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			if len(rest) == 0 {
				p.add(full).names[name] = true
			}
			full = next
			continue
		}
		p.add(full).names[name] = true
		target, err := os.Readlink(next)
		if links++; err != nil || links > maxLinks {
			return "", nil
		}
		if filepath.IsAbs(target) {
			full = root
		}
		rest = append(split(target), rest...)
	}
	info, err := os.Lstat(full)
	if err != nil { // It has gone meanwhile; the watch will tell.
		return "", nil
	}
	return full, info
}

func split(path string) []string {
	return strings.FieldsFunc(path, func(c rune) bool { return c == filepath.Separator })
}

// tree adds a folder and what policy.ReadPaths would find below it.
func (p places) tree(dir string, info fs.FileInfo) {
	if at := p[dir]; at != nil && at.all || len(p) > maxWatched {
		return
	}
	at := p.add(dir)
	at.info, at.all, at.names = info, true, map[string]bool{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // The fault shows when the files are read.
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		full := filepath.Join(dir, e.Name())
		switch {
		case e.IsDir():
			if info, err := e.Info(); err == nil {
				p.tree(full, info)
			}
		case e.Type()&fs.ModeSymlink != 0:
			if full, info := p.follow(full); info != nil && info.IsDir() {
				p.tree(full, info)
			}
		}
	}
}
