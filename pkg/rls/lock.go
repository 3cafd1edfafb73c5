package rls

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// errLocked says that another process holds the lock.
var errLocked = errors.New("locked by another process")

// lockFile is a file whose lock says who serves a socket. The kernel drops the
// lock with its holder, however that ends. The file itself is never unlinked:
// two processes could then each lock a file of that name.
//
// One goroutine at a time may use it.
type lockFile struct {
	f    *os.File
	held bool
}

func openLock(path string) (*lockFile, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("lock file: %w; create the directory %s", err, filepath.Dir(path))
	}
	if err != nil {
		return nil, fmt.Errorf("lock file: %w; the process must be able to write there", err)
	}
	return &lockFile{f: f}, nil
}

func (l *lockFile) path() string { return l.f.Name() }

// try takes the lock and writes this process's id into the file, or returns
// errLocked at once.
func (l *lockFile) try() error {
	for {
		err := syscall.Flock(int(l.f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return errLocked
		}
		if err != nil {
			return fmt.Errorf("lock %s: %w", l.path(), err)
		}
		break
	}
	l.held = true
	if err := l.f.Truncate(0); err != nil {
		return fmt.Errorf("lock file: %w", err)
	}
	if _, err := l.f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		return fmt.Errorf("lock file: %w", err)
	}
	return nil
}

// holder is the id of the process that wrote itself into the file last, for
// people to read.
func (l *lockFile) holder() string {
	b, err := io.ReadAll(io.NewSectionReader(l.f, 0, 32))
	if id := strings.TrimSpace(string(b)); err == nil && id != "" {
		return id
	}
	return "of unknown id"
}

// close gives the lock up. It may be called twice.
func (l *lockFile) close() error {
	if err := l.f.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("lock file: %w", err)
	}
	return nil
}
