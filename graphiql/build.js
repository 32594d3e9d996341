// Makes page/app.js.gz and page/app.css.gz, which are committed: `npm ci --ignore-scripts && npm run build`.
import { build } from 'esbuild';
import { readFileSync, writeFileSync } from 'node:fs';
import { gzipSync } from 'node:zlib';

// GraphiQL's tabs hold buttons, which ARIA does not allow: a list of buttons says what they are.
const tabs = {
  name: 'tabs',
  setup(build) {
    build.onLoad({ filter: /@graphiql\/react\/dist\/ui\/tabs\.js$/ }, ({ path }) => {
      const before = readFileSync(path, 'utf8');
      const contents = before.replace('"aria-selected": isActive, role: "tab"', '"aria-current": isActive').replace(', role: "tablist"', '');
      if (/role:/.test(contents)) throw new Error('the tabs are other ones');
      return { contents };
    });
  },
};

const { outputFiles } = await build({
  entryPoints: { app: 'main.jsx' },
  outdir: 'page',
  bundle: true,
  minify: true,
  write: false,
  format: 'iife',
  target: 'es2020',
  legalComments: 'none',
  define: { 'process.env.NODE_ENV': '"production"' },
  loader: { '.woff': 'dataurl', '.woff2': 'dataurl', '.ttf': 'dataurl' },
  plugins: [tabs],
});
for (const { path, contents } of outputFiles) writeFileSync(`${path}.gz`, gzipSync(contents, { level: 9 }));
