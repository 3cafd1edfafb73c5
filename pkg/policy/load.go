package policy

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// maxFiles and maxFolders bound what one path may bring, against a path such
// as / by mistake.
const (
	maxFiles   = 10_000
	maxFolders = 10_000
)

// Load reads and compiles: LoadPaths, then Compile.
func Load(paths []string, opts Options) (*Set, Faults) { return Compile(LoadPaths(paths), opts) }

// LoadFile reads one file. One that cannot be read becomes a File with that
// fault, so that nothing hides the faults of the others.
func LoadFile(name string) *File {
	const mend = "correct the path or the permissions"
	f, err := os.Open(name)
	if err != nil {
		return unreadable(name, CodeUnreadable, mend, reason(err))
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxFileSize+1))
	if err != nil {
		return unreadable(name, CodeUnreadable, mend, reason(err))
	}
	return Parse(name, data)
}

// reason returns an error of the file system without the path, which a fault
// shows anyway.
func reason(err error) string {
	var p *fs.PathError
	if errors.As(err, &p) {
		return fmt.Sprintf("%s: %v", p.Op, p.Err)
	}
	return err.Error()
}

// LoadPaths reads files and directories in the order given. A directory brings
// every file in it and below, in the order of their paths in it, whatever
// their extension, as envoyproxy/ratelimit does; symbolic links are followed.
// Entries whose name begins with a dot are skipped, as the peer does only with
// RUNTIME_IGNOREDOTFILES=true: Kubernetes keeps the real files of a mounted
// ConfigMap in ..data, where each would be found a second time. What is no
// regular file is skipped as well. A path given by name is read in any case.
func LoadPaths(paths []string) []*File {
	var files []*File
	for _, p := range paths {
		info, err := os.Stat(p)
		if err != nil {
			files = append(files, unreadable(p, CodeUnreadable, "correct policy.paths or the permissions", reason(err)))
			continue
		}
		if !info.IsDir() {
			files = append(files, LoadFile(p))
			continue
		}
		w := walk{root: p}
		w.folder("", nil)
		slices.Sort(w.names)
		for _, rel := range w.names {
			files = append(files, LoadFile(filepath.Join(p, rel)))
		}
		files = append(files, w.faulty...)
	}
	return files
}

// walk collects the files below one directory.
type walk struct {
	root    string
	names   []string // relative, with slashes of the system
	faulty  []*File
	folders int
}

func (w *walk) fail(rel string, err error) {
	w.faulty = append(w.faulty, unreadable(filepath.Join(w.root, rel), CodeUnreadable, "correct or remove it, or its permissions", reason(err)))
}

var errTooMany = errors.New("more files or folders than a policy set can have")

// folder walks one directory; around are the directories that it lies in, so
// that a symbolic link to one of them does not go round in circles.
func (w *walk) folder(rel string, around []fs.FileInfo) {
	full := filepath.Join(w.root, rel)
	info, err := os.Stat(full)
	if err != nil {
		w.fail(rel, err)
		return
	}
	if slices.ContainsFunc(around, func(a fs.FileInfo) bool { return os.SameFile(a, info) }) {
		w.fail(rel, errors.New("a symbolic link to a directory that it lies in"))
		return
	}
	around = append(around[:len(around):len(around)], info)
	entries, err := os.ReadDir(full)
	if err != nil {
		w.fail(rel, err)
		return
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		below := filepath.Join(rel, e.Name())
		info, err := os.Stat(filepath.Join(w.root, below))
		switch {
		case err != nil:
			w.fail(below, err)
		case info.IsDir():
			if w.folders++; w.folders > maxFolders {
				w.tooMany()
				return
			}
			w.folder(below, around)
		case info.Mode().IsRegular():
			if len(w.names) >= maxFiles {
				w.tooMany()
				return
			}
			w.names = append(w.names, below)
		}
	}
}

func (w *walk) tooMany() {
	if len(w.faulty) == 0 || w.faulty[len(w.faulty)-1].Name != w.root {
		w.fail("", errTooMany)
	}
}
