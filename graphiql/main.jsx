import React, { useState } from 'react';
import { createRoot } from 'react-dom/client';
import { GraphiQL } from 'graphiql';
import { createGraphiQLFetcher } from '@graphiql/toolkit';
import { parse } from 'graphql';
import { createClient } from 'graphql-ws';
import 'graphiql/style.css';
import './page.css';

// A sign-in link, which the server prints, leads here with an access token behind its #, which no browser sends anywhere. The
// token leaves the address bar at once, and is kept for as long as this browser tab is open.
const given = location.hash.slice(1).replace(/^token=/, '');
if (given) {
  sessionStorage.setItem('token', given);
  history.replaceState(null, '', location.pathname);
}
addEventListener('hashchange', () => location.reload());

let headers = { Authorization: `Bearer ${sessionStorage.getItem('token') ?? 'at_…'}` };
const named = (name) => Object.entries(headers).find(([n]) => n.toLowerCase() === name)?.[1] ?? '';
const credential = () => named('authorization') || named('x-api-key');
const isSet = (credential) => credential !== '' && !credential.includes('…');
const isMisplacedKey = () => /^(Bearer )?sk_/i.test(named('authorization'));

// Subscriptions go over a WebSocket, which takes the credential of the headers editor at connection_init.
const fetch = createGraphiQLFetcher({
  url: '/graphql',
  wsClient: createClient({ url: location.origin.replace(/^http/, 'ws') + '/graphql', connectionParams: () => headers }),
});

const noToken = 'Put an access token into the headers: `parley token create` makes one.\n\nThen run the query.';
const misplacedKey = 'The token in the headers is an API key, sk_…: that is no access token, and opens nothing in its place.\n\n' +
  'Put an access token there, at_…, which can do all that this page shows; or, to chat alone, the key as {"X-API-Key": "sk_…"}.';
const badToken = 'The token in the headers opens nothing: it is mistyped, or was revoked.';
const noSchema = 'This token may not read the schema, so nothing is completed or checked while you type.\nOperations run all the same.\n\n' +
  'The operator has narrowed that with PARLEY_INTROSPECTION.';

// keeping has each result of a subscription show those before it, too, the newest first: as many as a page can show.
const mostKept = 1000;
const keeping = (results) => {
  const iterator = results[Symbol.asyncIterator]();
  const kept = [];
  let received = 0;
  return {
    [Symbol.asyncIterator]() { return this; },
    async next() {
      const { done, value } = await iterator.next();
      if (done) return { done, value };
      received++;
      kept.unshift(value.errors ? value : value.data);
      kept.length = Math.min(kept.length, mostKept);
      return { done, value: { received, newestFirst: [...kept] } };
    },
    return: () => iterator.return(),
    throw: (error) => iterator.throw(error),
  };
};

// For a moment after a change of tabs GraphiQL still speaks of the other tab's operation.
const inQuestion = ({ query, operationName }) => {
  try {
    const documentAST = parse(query);
    const names = documentAST.definitions.filter((d) => d.kind === 'OperationDefinition').map((d) => d.name?.value);
    return { documentAST, operationName: names.includes(operationName) ? operationName : names[0] };
  } catch {
    return { operationName }; // the server says what is wrong
  }
};

// A new fetcher has GraphiQL read the schema again: that is made when an operation comes with another token.
const newFetcher = (again) => {
  let read = '';
  return async (params, options) => {
    if (params.operationName === 'IntrospectionQuery') {
      read = credential();
      if (!isSet(read)) return noToken;
      if (isMisplacedKey()) return misplacedKey;
      const result = await fetch(params, { ...options, headers });
      if (result?.data?.__schema) return result;
      return result?.errors?.[0]?.extensions?.code === 'UNAUTHENTICATED' ? badToken : noSchema;
    }
    headers = options?.headers ?? {};
    if (credential() !== read) setTimeout(again);
    if (isMisplacedKey()) return { errors: [{ message: misplacedKey }] };
    const { operationName, documentAST } = inQuestion(params);
    const results = await fetch({ ...params, operationName }, { ...options, documentAST });
    return results?.[Symbol.asyncIterator] ? keeping(results) : results;
  };
};

const queries = {
  viewer: '# Who calls, and what happened last.\n# Ctrl-Enter runs it. Esc, then Tab\n# leaves the editor.\nquery Viewer {\n  viewer {\n    business { name }\n    scope\n  }\n  events(last: 5) {\n    nodes { type channel timestamp data }\n  }\n}\n',
  events: '# Every event, as it happens. Run it, then\n# chat from elsewhere: the server printed\n# a curl line for that at its first start.\nsubscription Events {\n  events {\n    cursor\n    node { type channel timestamp data }\n  }\n}\n',
  chat: 'mutation Chat {\n  chat(input: {\n    agentId: "demo"\n    channel: WHATSAPP\n    message: "When are you open on Saturday?"\n  }) {\n    reply\n    sessionId\n  }\n}\n',
};

function Page() {
  const [fetcher, setFetcher] = useState(() => newFetcher(again));
  function again() {
    setFetcher(() => newFetcher(again));
  }
  return (
    <GraphiQL
      fetcher={fetcher}
      defaultHeaders={JSON.stringify(headers, null, 2)}
      defaultEditorToolsVisibility="headers"
      defaultQuery={queries.viewer}
      defaultTabs={Object.values(queries).map((query) => ({ query, headers: null }))}
    />
  );
}

// Tab indents in an editor: after Esc it goes on to what comes next, as everywhere.
let leaving = null; // the editor
addEventListener('keydown', (e) => {
  const editor = e.target.closest('.CodeMirror');
  if (e.key === 'Tab' && editor && leaving === editor) {
    e.stopImmediatePropagation();
    const lines = editor.querySelector('.CodeMirror-scroll');
    lines.tabIndex = -1; // for the while: they are of the same editor
    setTimeout(() => { lines.tabIndex = 0; });
  }
  if (e.key !== 'Shift') leaving = e.key === 'Escape' ? editor : null;
}, true);

// The editors' own text fields bear no names, and what they show cannot be scrolled by keyboard.
new MutationObserver(() => {
  for (const field of document.querySelectorAll('.CodeMirror textarea:not([aria-label])')) {
    const label = field.closest('[aria-label]')?.ariaLabel ?? 'Editor';
    field.setAttribute('aria-label', `${label}: Esc, then Tab leaves it`);
    field.closest('.CodeMirror').querySelector('.CodeMirror-scroll').tabIndex = 0;
  }
}).observe(document.body, { childList: true, subtree: true });

createRoot(document.getElementById('graphiql')).render(<Page />);
