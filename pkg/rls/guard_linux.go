package rls

import (
	"errors"
	"io"

	"golang.org/x/sys/unix"
)

// guarded runs do while no other process changes the socket's path: between a
// stopping process's look at the path and its unlink a successor could rename
// its socket there, and lose it. The lock is another one than try's, on the
// same file, and held for the moment only. File systems without such locks go
// without.
func (l *lockFile) guarded(do func() error) error {
	region := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Len: 1}
	err := unix.FcntlFlock(l.f.Fd(), unix.F_OFD_SETLKW, &region)
	for errors.Is(err, unix.EINTR) {
		err = unix.FcntlFlock(l.f.Fd(), unix.F_OFD_SETLKW, &region)
	}
	if err == nil {
		defer func() {
			region.Type = unix.F_UNLCK
			_ = unix.FcntlFlock(l.f.Fd(), unix.F_OFD_SETLK, &region)
		}()
	}
	return do()
}
